"""Run the code in the rollouts against its tests, in the sandbox; samples without code to run give no row.

Rollouts stream in and executions stream out, so that a million of them take no more memory than a thousand.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import pyarrow.parquet as pq

from burnish.contracts.parquet import iter_records, read_records, write_records
from burnish.contracts.records import Execution, Prompt, Rollout
from burnish.rewards.execution import execute_rollouts, needs_execution
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.execute_figures import ExecutionTally
from burnish.stages.progress import progress


def run(context: StageContext) -> StageResult:
    """rollouts.parquet and prompts.parquet in, executions.parquet out, in the order of the rollouts.

    A shard executes the samples of its groups.
    """
    prompts = {
        prompt.prompt_id: prompt for prompt in read_records(context.input_dir("prompts") / "prompts.parquet", Prompt)
    }
    executed = {prompt_id for prompt_id, prompt in prompts.items() if needs_execution(prompt)}
    rollouts: Iterable[Rollout] = ()
    total = 0
    if executed:
        path = context.input_dir("rollouts") / "rollouts.parquet"
        rows = iter_records(path, Rollout)
        first = list(islice(rows, 1))  # a file that is none of ours is refused before it is counted
        own = context.own(group_id for _, group_id in _ids(path))
        rollouts = (rollout for rollout in chain(first, rows) if rollout.group_id in own)
        total = sum(prompt_id in executed and group_id in own for prompt_id, group_id in _ids(path))
    executions = execute_rollouts(rollouts, prompts, context.config.execute, owner=context.run_id)
    tally = ExecutionTally()
    written = write_records(
        context.output_dir("executions") / "executions.parquet",
        tally.counting(progress(executions, total, context.title, "samples")),
        Execution,
    )
    return StageResult(metrics=tally.metrics(), counts={"executions": {"rows": written}})


def _ids(path: Path) -> Iterator[tuple[str, str]]:
    """prompt_id and group_id of each rollout, from two columns: decoding whole rows twice would show."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["prompt_id", "group_id"]):
            yield from zip(batch["prompt_id"].to_pylist(), batch["group_id"].to_pylist(), strict=True)


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("execute")
