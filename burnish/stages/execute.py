"""Run the code in the rollouts against its tests, in the sandbox; samples without code to run give no row.

Rollouts stream in and executions stream out, so that a million of them take no more memory than a thousand.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import pyarrow.parquet as pq

from burnish.contracts.parquet import iter_records, read_records, write_records
from burnish.contracts.records import Execution, Prompt, Rollout
from burnish.rewards.execution import execute_rollouts, needs_execution
from burnish.stages.entry import StageContext, StageResult
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
    tally = Tally()
    written = write_records(
        context.output_dir("executions") / "executions.parquet",
        tally.counting(progress(executions, total, context.title, "samples")),
        Execution,
    )
    return StageResult(metrics=tally.metrics(), counts={"executions": {"rows": written}})


@dataclass
class Tally:
    """What the metrics need of executions that are not kept."""

    verdicts: Counter[str] = field(default_factory=Counter)
    executions: int = 0
    degraded: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def counting(self, executions: Iterable[Execution]) -> Iterator[Execution]:
        for execution in executions:
            self.executions += 1
            self.verdicts.update(execution.verdicts)
            self.degraded += execution.degraded
            self.seconds += execution.seconds
            self.longest = max(self.longest, execution.seconds)
            yield execution

    def metrics(self) -> dict[str, float | None]:
        some = self.executions > 0
        metrics: dict[str, float | None] = {
            "executions": float(self.executions),
            "degraded": float(self.degraded),
            "seconds/mean": self.seconds / self.executions if some else None,
            "seconds/max": self.longest if some else None,
        }
        return metrics | {f"verdict/{verdict}": float(count) for verdict, count in sorted(self.verdicts.items())}


def _ids(path: Path) -> Iterator[tuple[str, str]]:
    """prompt_id and group_id of each rollout, from two columns: decoding whole rows twice would show."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["prompt_id", "group_id"]):
            yield from zip(batch["prompt_id"].to_pylist(), batch["group_id"].to_pylist(), strict=True)


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("execute")
