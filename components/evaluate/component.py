"""evaluate: pass@k on the held-out prompts, with confidence intervals."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="burnish/evaluate", install_kfp_package=False)
def evaluate(
    run_id: str,
    job_id: str,
    label: str,
    resolved: Input[Artifact],
    policy: Input[Model],
    prompts: Input[Dataset],
    evaluation: Output[Artifact],
    metrics: Output[Metrics],
) -> None:
    """Sample, verify and count on prompts that were never trained on.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        label: `before` or `after` training.
        resolved: The run's configuration.
        policy: Policy to evaluate.
        prompts: All prompts; the held-out ones are used.
        evaluation: pass@k overall and per task, and the samples behind it.
        metrics: pass@k with the bounds of its interval.
    """
    from burnish.stages.component import run_component

    run_component(
        "evaluate",
        run_id=run_id or job_id,
        label=label,
        config=resolved,
        inputs={"policy": policy, "prompts": prompts},
        outputs={"evaluation": evaluation},
        metrics=metrics,
    )
