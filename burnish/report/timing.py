"""Where a run's wall time went: inside stages, by phase, and between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.contracts.artifacts import StageRecord

PHASES = ("start", "import", "download", "compute", "upload")
"""In the order in which a stage goes through them; all but compute are overhead."""


@dataclass(frozen=True)
class StageTime:
    """One stage of the run, in seconds."""

    record: StageRecord
    offset: float
    """From the start of the run."""
    phases: dict[str, float]
    total: float


@dataclass(frozen=True)
class RunTime:
    """The latest attempt; stages whose result was remembered took no time in it."""

    stages: list[StageTime]
    wall: float
    busy: float
    """Wall time during which at least one stage ran."""
    work: float
    """Time of all stages together, more than `busy` when some ran side by side."""
    compute: float

    @property
    def overhead(self) -> float:
        """Share of the wall time that is not computing; 0 when stages side by side compute more than that."""
        return max(0.0, 1.0 - self.compute / self.wall) if self.wall else 0.0


def run_time(records: Sequence[StageRecord]) -> RunTime | None:
    """Timing of the stages that ran; None when none did."""
    ran = [record for record in records if not record.cached and not record.skipped and record.finished_at]
    if not ran:
        return None
    origin = min(_began(record) for record in ran)
    stages = []
    for record in sorted(ran, key=_began):
        total = record.finished_at - _began(record)
        phases = {phase: record.timings.get(phase, 0.0) for phase in PHASES}
        stages.append(StageTime(record, _began(record) - origin, phases, total))
    return RunTime(
        stages,
        wall=max(record.finished_at for record in ran) - origin,
        busy=_covered([(_began(record), record.finished_at) for record in ran]),
        work=sum(stage.total for stage in stages),
        compute=sum(stage.phases["compute"] for stage in stages),
    )


def _began(record: StageRecord) -> float:
    """When its process started; `started_at` is the first line of ours in it."""
    return record.started_at - record.timings.get("start", 0.0)


def _covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of `intervals`."""
    covered, reached = 0.0, float("-inf")
    for low, high in sorted(intervals):
        covered += max(0.0, high - max(low, reached))
        reached = max(reached, high)
    return covered
