"""What the rollout server has done since it started, in Prometheus' text format, version 0.0.4.

Owned by the server's event loop; labels come from fixed sets, but for the digest of the loaded policy.
"""

from collections import Counter
from collections.abc import Mapping


class Metrics:
    """Counters; gauges are handed to `render`."""

    def __init__(self) -> None:
        self.completions: Counter[str] = Counter()
        """By finish reason."""
        self.tokens = 0
        self.loads: Counter[str] = Counter()
        """By outcome: loaded, failed."""
        self.load_seconds = 0.0
        self.fresh_engines = 0
        self.refused: Counter[str] = Counter()
        """Requests by reason: busy (another policy is held), version, unauthorized, invalid."""

    def completed(self, finish_reason: str, tokens: int) -> None:
        self.completions[finish_reason] += 1
        self.tokens += tokens

    def loaded(self, seconds: float) -> None:
        self.loads["loaded"] += 1
        self.load_seconds += seconds

    def render(self, gauges: Mapping[str, tuple[str, float]], policy: str | None, version: int | None) -> str:
        """All of it; `gauges` has each present value with its help, by name."""
        lines: list[str] = []
        for name, (text, value) in gauges.items():
            lines += [*_head(name, "gauge", text), f"{name} {value:g}"]
        if policy is not None:
            name = "burnish_rollout_policy_info"
            lines += [*_head(name, "gauge", "The loaded policy."), f'{name}{{policy="{policy}",version="{version}"}} 1']
        for name, text, value in (
            ("burnish_rollout_tokens_total", "Tokens drawn.", self.tokens),
            ("burnish_rollout_load_seconds_total", "Seconds that loads took, downloads included.", self.load_seconds),
            (
                "burnish_rollout_fresh_engines_total",
                "Engines replaced for a policy that did not fit.",
                self.fresh_engines,
            ),
        ):
            lines += [*_head(name, "counter", text), f"{name} {value:g}"]
        for name, label, text, counter in (
            ("burnish_rollout_completions_total", "finish", "Completions by why they ended.", self.completions),
            ("burnish_rollout_loads_total", "outcome", "Policies loaded, or not.", self.loads),
            ("burnish_rollout_refused_total", "reason", "Requests that were refused.", self.refused),
        ):
            lines += _head(name, "counter", text)
            lines += [f'{name}{{{label}="{value}"}} {number}' for value, number in sorted(counter.items())]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
