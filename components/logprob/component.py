"""logprob: what the trainer's own model thinks of the sampled tokens."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="burnish/logprob", install_kfp_package=False)
def logprob(
    run_id: str,
    job_id: str,
    round: int,
    resolved: Input[Artifact],
    rollouts: Input[Dataset],
    policy: Input[Model],
    reference: Input[Model],
    critic: Input[Model],
    logprobs: Output[Dataset],
    metrics: Output[Metrics],
) -> None:
    """Recompute logprobs and entropy at the sampler's temperature; measure the mismatch with the sampler.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        round: Round, from 1.
        resolved: The run's configuration.
        rollouts: The round's sequences.
        policy: Policy that the update will start from.
        reference: Frozen policy that the KL term refers to.
        critic: Value model, for recipes that have one.
        logprobs: Old and reference logprobs, entropy and values of each token.
        metrics: Mismatch figures: kl, k3, ESS, share of ratios outside the bounds.
    """
    from burnish.stages.component import run_component

    run_component(
        "logprob",
        run_id=run_id or job_id,
        round=round,
        config=resolved,
        inputs={"rollouts": rollouts, "policy": policy, "reference": reference, "critic": critic},
        outputs={"logprobs": logprobs},
        metrics=metrics,
    )
