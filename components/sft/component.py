"""sft: the cold start. Makes the first policy, which is also the reference."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="burnish/sft", install_kfp_package=False)
def sft(
    run_id: str,
    job_id: str,
    resolved: Input[Artifact],
    prompts: Input[Dataset],
    policy: Output[Model],
    trainer_state: Output[Artifact],
    critic: Output[Model],
    verdict: Output[Artifact],
    metrics: Output[Metrics],
) -> None:
    """Train the base model on demonstrations, or pass it on where there are none.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        resolved: The run's configuration.
        prompts: Prompts with demonstrations.
        policy: Policy of version 0.
        trainer_state: The empty state of the first update.
        critic: Empty until the first update of a recipe with a critic.
        verdict: The verdict before the first round: fine so far.
        metrics: Loss before and after.
    """
    from burnish.stages.component import run_component

    run_component(
        "sft",
        run_id=run_id or job_id,
        config=resolved,
        inputs={"prompts": prompts},
        outputs={"policy": policy, "trainer_state": trainer_state, "critic": critic, "verdict": verdict},
        metrics=metrics,
    )
