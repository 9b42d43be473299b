"""execute: run model-written code against its tests, in the sandbox."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Output


@dsl.component(base_image="burnish/execute", install_kfp_package=False)
def execute(
    run_id: str,
    job_id: str,
    round: int,
    resolved: Input[Artifact],
    rollouts: Input[Dataset],
    prompts: Input[Dataset],
    executions: Output[Dataset],
    metrics: Output[Metrics],
    shard: str = "",
) -> None:
    """Execute the completions of prompts that come with tests; the others have no row.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        round: Round, from 1.
        resolved: The run's configuration.
        rollouts: The round's sequences.
        prompts: All prompts, with their tests.
        executions: A verdict per test of each executed sequence.
        metrics: Counts by verdict, seconds.
        shard: `2/3` for one of several pods; empty for all of the round.
    """
    from burnish.stages.component import run_component

    run_component(
        "execute",
        run_id=run_id or job_id,
        round=round,
        shard=shard,
        config=resolved,
        inputs={"rollouts": rollouts, "prompts": prompts},
        outputs={"executions": executions},
        metrics=metrics,
    )
