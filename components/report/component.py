"""report: one HTML page on the whole run. The pipeline's exit handler: it runs after a failure too."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output


@dsl.component(base_image="burnish/report", install_kfp_package=False)
def report(
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
    report: Output[HTML],
    metrics: Output[Metrics],
) -> None:
    """Draw the run: curves, before and after, timings, a browser of the rollouts.

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
        report: The page, everything inline.
        metrics: The run's headline figures.
    """
    from burnish.stages.component import run_component

    run_component(
        "report",
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
        outputs={"report": report},
        metrics=metrics,
        shown="report.html",
    )
