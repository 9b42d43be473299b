"""validate: check the configuration before a GPU is taken, and build the prompts of every task."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Metrics, Output


@dsl.component(base_image="burnish/validate", install_kfp_package=False)
def validate(
    run_id: str,
    job_id: str,
    config: str,
    overrides: str,
    evaluate_samples: str,
    model_path: str,
    rollout_prompts_per_round: str,
    rollout_shards: str,
    track_experiment: str,
    update_learning_rate: str,
    rounds: int,
    max_staleness: int,
    refresh_interval: int,
    sharded: bool,
    resolved: Output[Artifact],
    prompts: Output[Dataset],
    metrics: Output[Metrics],
) -> list[str]:
    """Resolve and check the run's configuration; write it and the prompts of every task.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        config: The configuration as YAML or JSON text.
        overrides: `a.b=c` settings with the last word, separated by spaces or newlines.
        evaluate_samples: Replaces evaluate.samples unless empty.
        model_path: Replaces model.path unless empty.
        rollout_prompts_per_round: Replaces rollout.prompts_per_round unless empty.
        rollout_shards: Replaces rollout.shards unless empty.
        track_experiment: Replaces track.experiment unless empty.
        update_learning_rate: Replaces update.learning_rate unless empty.
        rounds: Rounds this pipeline was compiled for.
        max_staleness: Staleness this pipeline was compiled for.
        refresh_interval: Refresh of the reference this pipeline was compiled for.
        sharded: Whether this pipeline was compiled with loops over shards.
        resolved: The complete configuration, which every other stage reads.
        prompts: Training, held-out and demonstration prompts.
        metrics: Counts of prompts.

    Returns:
        The shards of a round, such as `1/3`, `2/3`, `3/3`.
    """
    from burnish.stages.component import run_component, shards_of

    run_component(
        "validate",
        run_id=run_id or job_id,
        config=config,
        form={
            "evaluate.samples": evaluate_samples,
            "model.path": model_path,
            "rollout.prompts_per_round": rollout_prompts_per_round,
            "rollout.shards": rollout_shards,
            "track.experiment": track_experiment,
            "update.learning_rate": update_learning_rate,
        },
        overrides=overrides,
        compiled_for={
            "rounds": rounds,
            "max_staleness": max_staleness,
            "update.kl.refresh_interval": refresh_interval,
            **({} if sharded else {"rollout.shards": 1}),
        },
        outputs={"resolved": resolved, "prompts": prompts},
        metrics=metrics,
    )
    return shards_of(resolved)
