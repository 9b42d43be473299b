"""gather: put the shards of a stage's result together."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Output


@dsl.component(base_image="burnish/reward", install_kfp_package=False)
def gather(
    run_id: str,
    job_id: str,
    stage: str,
    shards: Input[list[Dataset]],
    whole: Output[Dataset],
    metrics: Output[Metrics],
) -> None:
    """Join the shards into the artifact that one pod would have made, once all are there and none twice.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        stage: Whose shards they are: rollout or execute.
        shards: One artifact of each shard, in any order.
        whole: All rows, in the order of their ids.
        metrics: The stage's figures over all rows.
    """
    from burnish.stages.component import gather_component

    gather_component(stage, run_id=run_id or job_id, shards=shards, output=whole, metrics=metrics)
