"""What is measured of a round's rollouts, counted as they pass by; the same whether one pod drew them or several."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from burnish.contracts.records import Rollout


@dataclass
class RolloutTally:
    """What counts and metrics need of rollouts that are not kept."""

    samples: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    group_ids: set[str] = field(default_factory=set)

    def counting(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """Pass `rollouts` on."""
        for rollout in rollouts:
            length = len(rollout.response_ids)
            self.samples += 1
            self.tokens += length
            self.longest = max(self.longest, length)
            self.truncated += rollout.finish_reason == "length"
            self.group_ids.add(rollout.group_id)
            yield rollout

    def counts(self) -> dict[str, int]:
        return {"samples": self.samples, "groups": len(self.group_ids), "tokens": self.tokens}

    def metrics(self, *, aborted: float, seconds: float) -> dict[str, float | None]:
        """`aborted`: samples that gave no rollout; `seconds`: how long drawing took."""
        some = self.samples > 0
        return {
            "samples": float(self.samples),
            "aborted": aborted,
            "tokens": float(self.tokens),
            "response_length_mean": self.tokens / self.samples if some else None,
            "response_length_max": float(self.longest) if some else None,
            "truncated_share": self.truncated / self.samples if some else None,
            "tokens_per_second": self.tokens / seconds if seconds else None,
            "seconds": seconds,
        }
