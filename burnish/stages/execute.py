"""Run the code in the rollouts against its tests, in the sandbox; samples without code to run give no row."""

from collections import Counter

from burnish.contracts.records import Execution, Prompt, Rollout, iter_records, read_records, write_records
from burnish.rewards.execution import execute_rollouts, needs_execution
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import progress


def run(context: StageContext) -> StageResult:
    """rollouts.parquet and prompts.parquet in, executions.parquet out."""
    prompts = {
        prompt.prompt_id: prompt for prompt in read_records(context.input_dir("prompts") / "prompts.parquet", Prompt)
    }
    rollouts: list[Rollout] = []
    if any(map(needs_execution, prompts.values())):
        rollouts = list(iter_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout))
    executions = list(
        progress(
            execute_rollouts(rollouts, prompts, context.config.execute),
            total=sum(
                needs_execution(prompts[rollout.prompt_id]) for rollout in rollouts if rollout.prompt_id in prompts
            ),
            title=context.title,
            unit="samples",
        )
    )
    # They come as they finish; the file must not depend on that.
    executions.sort(key=lambda execution: execution.sample_id)
    rows = write_records(context.output_dir("executions") / "executions.parquet", executions, Execution)
    return StageResult(metrics=_metrics(executions), counts={"executions": {"rows": rows}})


def _metrics(executions: list[Execution]) -> dict[str, float | None]:
    verdicts = Counter(verdict for execution in executions for verdict in execution.verdicts)
    seconds = [execution.seconds for execution in executions]
    metrics: dict[str, float | None] = {
        "executions": float(len(executions)),
        "degraded": float(sum(execution.degraded for execution in executions)),
        "seconds/mean": sum(seconds) / len(seconds) if seconds else None,
        "seconds/max": max(seconds, default=None),
    }
    return metrics | {f"verdict/{verdict}": float(count) for verdict, count in sorted(verdicts.items())}


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("execute")
