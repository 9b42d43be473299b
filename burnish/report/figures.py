"""A run's figures as a diagnosis asks for them: by round or by step, in order, what was not measured left out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.report.run import RunView


@dataclass(frozen=True)
class RewardChange:
    """The mean reward of the first and the last round, and what the difference is worth."""

    first: float
    last: float
    noise: float
    """Standard error of the difference, groups taken as independent."""

    @property
    def rose(self) -> bool:
        return self.last - self.first > 2 * self.noise

    @property
    def fell(self) -> bool:
        return self.first - self.last > 2 * self.noise


@dataclass(frozen=True)
class Figures:
    """What rules read; every series leaves out skipped rounds and missing values."""

    view: RunView

    @property
    def config(self) -> RunConfig:
        return self.view.config

    def by_round(self, stage: str, metric: str) -> list[float]:
        """A metric of a stage, one value a round."""
        return _measured(record.metrics.get(metric) for record in self._records(stage))

    def by_step(self, metric: str) -> list[float]:
        """A figure of the optimizer steps; where steps do not have it, the update's figure of each round."""
        rows = [row.get(metric) for record in self._records("update") for row in record.series]
        return _measured(rows) or self.by_round("update", metric)

    def late(self, stage: str, metric: str) -> float | None:
        """Mean over the last third of the rounds, at least one."""
        values = self.by_round(stage, metric)
        return fmean(values[-max(1, len(values) // 3) :]) if values else None

    def late_step(self, metric: str) -> float | None:
        """Mean over the last third of the steps, at least one."""
        values = self.by_step(metric)
        return fmean(values[-max(1, len(values) // 3) :]) if values else None

    @property
    def solved(self) -> float | None:
        """Share of right answers in the late rounds; where no verifier decides, nothing is known."""
        return self.late("reward", "solved/mean")

    @property
    def reward_change(self) -> RewardChange | None:
        """Over the run; None before the third round."""
        means, spreads = self.by_round("reward", "reward/mean"), self.by_round("reward", "reward/std")
        if len(means) < 3 or not spreads:
            return None
        error = fmean(spreads) * math.sqrt(2 / self.config.rollout.prompts_per_round)
        return RewardChange(means[0], means[-1], error)

    @property
    def reward_is_flat(self) -> bool:
        """Three rounds or more without a change beyond noise, and something left to learn."""
        change = self.reward_change
        return change is not None and not change.rose and not change.fell and (self.solved or 0.0) < 0.9

    def _records(self, stage: str) -> Sequence[StageRecord]:
        found = (record for record in self.view.records if record.stage == stage and record.round is not None)
        whole = (record for record in found if not (record.skipped or record.shard))
        return sorted(whole, key=lambda record: record.round or 0)


def _measured(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
