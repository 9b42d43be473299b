"""rollout: sample a group of completions for each prompt of the round."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="burnish/rollout", install_kfp_package=False)
def rollout(
    run_id: str,
    job_id: str,
    round: int,
    resolved: Input[Artifact],
    policy: Input[Model],
    prompts: Input[Dataset],
    verdict: Input[Artifact],
    rollouts: Output[Dataset],
    metrics: Output[Metrics],
    shard: str = "",
) -> None:
    """Sample completions, with the sampler's logprob of every token.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        round: Round, from 1.
        resolved: The run's configuration.
        policy: Policy to sample from.
        prompts: All prompts; the round's own are drawn from them by the seed.
        verdict: Of the update that made the policy; after a stop there is nothing to sample.
        rollouts: One row per sequence.
        metrics: Lengths, finish reasons, tokens per second.
        shard: `2/3` for one of several pods; empty for all of the round.
    """
    from burnish.stages.component import run_component

    run_component(
        "rollout",
        run_id=run_id or job_id,
        round=round,
        shard=shard,
        config=resolved,
        inputs={"policy": policy, "prompts": prompts, "verdict": verdict},
        outputs={"rollouts": rollouts},
        metrics=metrics,
    )
