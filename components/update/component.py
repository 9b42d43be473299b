"""update: advantages, losses and the optimizer steps of one round."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="burnish/update", install_kfp_package=False)
def update(
    run_id: str,
    job_id: str,
    round: int,
    resolved: Input[Artifact],
    rollouts: Input[Dataset],
    rewards: Input[Dataset],
    logprobs: Input[Dataset],
    policy: Input[Model],
    trainer_state: Input[Artifact],
    critic: Input[Model],
    verdict: Input[Artifact],
    updated_policy: Output[Model],
    updated_trainer_state: Output[Artifact],
    updated_critic: Output[Model],
    updated_verdict: Output[Artifact],
    metrics: Output[Metrics],
) -> None:
    """Train the policy on the round's sequences.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        round: Round, from 1.
        resolved: The run's configuration.
        rollouts: The round's sequences.
        rewards: Their rewards.
        logprobs: The trainer's logprobs of them.
        policy: Policy to train.
        trainer_state: Optimizer state that belongs to it.
        critic: Value model, for recipes that have one.
        verdict: What the previous update said about the run.
        updated_policy: Policy after the round's optimizer steps.
        updated_trainer_state: Optimizer state after them.
        updated_critic: Value model after them.
        updated_verdict: ok, warn, rolled_back or stop, with reasons.
        metrics: Loss, KL, clip share, entropy, gradient norm.
    """
    from burnish.stages.component import run_component

    run_component(
        "update",
        run_id=run_id or job_id,
        round=round,
        config=resolved,
        inputs={
            "rollouts": rollouts,
            "rewards": rewards,
            "logprobs": logprobs,
            "policy": policy,
            "trainer_state": trainer_state,
            "critic": critic,
            "verdict": verdict,
        },
        outputs={
            "updated_policy": updated_policy,
            "updated_trainer_state": updated_trainer_state,
            "updated_critic": updated_critic,
            "updated_verdict": updated_verdict,
        },
        metrics=metrics,
    )
