"""What the micro-batches of an optimizer step saw: sums over trained tokens, from which the step's figures follow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnish.models.parallel import Ranks


@dataclass
class Tally:
    """Sums, so that micro-batches and ranks add up."""

    loss: float = 0.0
    policy_loss: float = 0.0
    rejected: float = 0.0
    """Responses rejected as off-policy."""
    count: float = 0.0
    """Trained tokens that were run."""
    ratio_max: float | None = None
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, mask: Tensor, values: Mapping[str, Tensor]) -> None:
        """Values are [n, R], of which the tokens under `mask` count; one of them is `ratio`."""
        self.count += float(mask.sum())
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.detach()[mask].double().sum())
        if mask.any():
            highest = float(values["ratio"][mask].max())
            self.ratio_max = highest if self.ratio_max is None else max(self.ratio_max, highest)

    def over(self, ranks: Ranks) -> "Tally":
        """The same over all ranks, which must all ask."""
        highest = ranks.gather(torch.tensor([-math.inf if self.ratio_max is None else self.ratio_max])).max().item()
        return Tally(
            loss=ranks.total(self.loss),
            policy_loss=ranks.total(self.policy_loss),
            rejected=ranks.total(self.rejected),
            count=ranks.total(self.count),
            ratio_max=None if highest == -math.inf else highest,
            sums={name: ranks.total(value) for name, value in self.sums.items()},
        )

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.count if self.count and name in self.sums else None

    def figures(self) -> dict[str, float | None]:
        """Means over tokens under the names of the step's series."""
        low, high = self.mean("clipped_low"), self.mean("clipped_high")
        return {
            "loss": self.loss,
            "policy_loss": self.policy_loss,
            "kl": self.mean("kl"),
            "entropy": self.mean("entropy"),
            "clip_fraction": None if low is None or high is None else low + high,
            "clip_fraction_low": low,
            "clip_fraction_high": high,
            "ratio_mean": self.mean("ratio"),
            "ratio_max": self.ratio_max,
            "rejected_off_policy": self.rejected,
            "tokens": self.count,
        }
