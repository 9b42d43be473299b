"""What is measured of a round's executions, counted as they pass by; the same whether one pod ran them or several."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from burnish.contracts.records import Execution


@dataclass
class ExecutionTally:
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
