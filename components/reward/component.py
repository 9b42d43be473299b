"""reward: score every sequence and fuse the scores."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Output


@dsl.component(base_image="burnish/reward", install_kfp_package=False)
def reward(
    run_id: str,
    job_id: str,
    round: int,
    resolved: Input[Artifact],
    rollouts: Input[Dataset],
    executions: Input[Dataset],
    prompts: Input[Dataset],
    rewards: Output[Dataset],
    metrics: Output[Metrics],
) -> None:
    """Score the round's sequences; a score that does not apply or failed is missing, not 0.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        round: Round, from 1.
        resolved: The run's configuration.
        rollouts: The round's sequences.
        executions: Verdicts of the executed ones.
        prompts: All prompts, with their verifiers.
        rewards: Components, fused reward and flags of each sequence.
        metrics: Means, per task and per component; how many are missing.
    """
    from burnish.stages.component import run_component

    run_component(
        "reward",
        run_id=run_id or job_id,
        round=round,
        config=resolved,
        inputs={"rollouts": rollouts, "executions": executions, "prompts": prompts},
        outputs={"rewards": rewards},
        metrics=metrics,
    )
