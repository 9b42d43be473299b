"""report: one HTML page on the whole run. The pipeline's exit handler: it runs after a failure too."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output


@dsl.component(base_image="burnish/report", install_kfp_package=False)
def report(
    run_id: str,
    job_id: str,
    config: str,
    overrides: str,
    report: Output[HTML],
    metrics: Output[Metrics],
) -> None:
    """Draw the run: curves, before and after, timings, a browser of the rollouts.

    Args:
        run_id: Name of the run's records; empty for the KFP job id.
        job_id: KFP's id of this run.
        config: The configuration as YAML or JSON text.
        overrides: `a.b=c` settings on top of it, separated by spaces or newlines.
        report: The page, everything inline.
        metrics: The run's headline figures.
    """
    from burnish.stages.component import run_component

    run_component(
        "report",
        run_id=run_id or job_id,
        config=config,
        overrides=overrides,
        outputs={"report": report},
        metrics=metrics,
        shown="report.html",
    )
