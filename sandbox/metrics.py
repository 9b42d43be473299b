"""Counters and a histogram in Prometheus' text format, version 0.0.4.

Owned by one thread, so nothing here is locked; labels come from fixed sets, never from what a client sends.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

# Seconds; an execution takes 5 ms when nothing is wrong and at most its wall-clock limit.
_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """How often values fell into each bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(_BOUNDS, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        bounds = [*map(str, _BOUNDS), "+Inf"]
        buckets = zip(bounds, accumulate(self._counts), strict=True)
        return [
            *(f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in buckets),
            f"{name}_sum {self.total:.6f}",
            f"{name}_count {self.count}",
        ]


class Metrics:
    """What the service has done since it started."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        """By what became of them: finished, cancelled, expired, dropped."""
        self.verdicts: Counter[str] = Counter()
        """Tests by verdict."""
        self.rejected: Counter[str] = Counter()
        """Jobs not taken, by reason: queue, owner, memory, draining, invalid, conflict, unauthorized."""
        self.execution = Histogram()
        self.waiting = Histogram()

    def render(self, gauges: Mapping[str, tuple[str, float]], restarts: int) -> str:
        """All of it; `gauges` has each present value with its help, by name."""
        lines: list[str] = []
        for name, (text, value) in gauges.items():
            lines += [*_head(name, "gauge", text), f"{name} {value:g}"]
        for name, label, text, counter in (
            ("sandbox_jobs_total", "outcome", "Jobs by what became of them.", self.jobs),
            ("sandbox_tests_total", "verdict", "Tests by verdict.", self.verdicts),
            ("sandbox_rejected_total", "reason", "Jobs that were not taken, by reason.", self.rejected),
        ):
            lines += _head(name, "counter", text)
            lines += [f'{name}{{{label}="{value}"}} {count}' for value, count in sorted(counter.items())]
        name = "sandbox_worker_restarts_total"
        lines += [*_head(name, "counter", "Sandboxes replaced because they died."), f"{name} {restarts}"]
        for name, text, histogram in (
            ("sandbox_execution_seconds", "Running a job, all its tests together.", self.execution),
            ("sandbox_queue_seconds", "From a job's submission to its start.", self.waiting),
        ):
            lines += [*_head(name, "histogram", text), *histogram.lines(name)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
