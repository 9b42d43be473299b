"""Noticing that a run collapses, from a few figures a step; plain numbers, no tensors.

A step violates when a figure passes a limit (collapse_limits.py) or jumps away from its recent past; enough violating
steps among the last few are a collapse.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from burnish.contracts.algorithm import CollapseConfig
from burnish.maths.collapse_limits import (
    START_STEPS,
    Row,
    best_reward,
    past_limits,
    reward_pays,
    reward_trend,
    values_of,
)
from burnish.maths.robust import centre_and_scale


@dataclass(frozen=True)
class Finding:
    """What `detect` says. `warn`: some of the last steps violate, too few for a collapse."""

    status: Literal["ok", "warn", "collapsed"]
    reasons: list[str]
    """One line each: series, value, bound, and the setting to change."""


class _Jump(NamedTuple):
    """Which jumps of a series are bad."""

    direction: Literal["up", "down", "both"]
    floor: float
    """Least deviation that a constant past is taken to have."""
    share: float
    """The same, as a share of the median."""


_JUMPS = {
    "reward": _Jump("down", 0.02, 0.05),
    "entropy": _Jump("both", 0.02, 0.1),
    "kl": _Jump("up", 0.02, 0.25),
    "loss": _Jump("both", 0.05, 0.5),
    "grad_norm": _Jump("up", 0.25, 0.5),
    "response_length": _Jump("both", 1.0, 0.1),
}

# Values before a jump can be told from noise.
_ENOUGH = 8
# Deviations. A steady climb stays below; the first successes of a sparse reward, whose gradients jump too, do not.
_LEAP = 3.0

REMEDY = {
    "reward": "lower update.learning_rate",
    "entropy": "raise update.loss.clip_high if it fell, update.kl.coef if it rose",
    "kl": "raise update.kl.coef or lower update.learning_rate",
    "loss": "lower update.learning_rate",
    "grad_norm": "lower update.learning_rate or update.max_grad_norm",
    "response_length": "set reward.overlong_buffer or update.filters.length_mad",
    "truncated_share": "raise rollout.max_new_tokens or set reward.overlong_buffer",
    "clip_fraction": "lower update.learning_rate, update.steps or update.epochs",
    "ess": "lower max_staleness or set update.correction.mode=token_mask",
    "mismatch": "set model.dtype=float32 or update.correction.mode=token_mask",
}


def detect(history: Sequence[Row], settings: CollapseConfig) -> Finding:
    """Judge the last `settings.recent` rows of `history`: one an optimizer step, oldest first; None: not measured.

    Rows hold reward, entropy, kl, loss, grad_norm, response_length, truncated_share, clip_fraction, ess and mismatch
    (mean |old - rollout|). A loss or gradient norm that is not finite is a collapse at once. While the reward leaps up,
    figures may jump, and while it stands at its best, above its start, entropy may be low: that is learning.
    """
    first = max(0, len(history) - settings.recent)
    steps = [_violations(history[:end], settings) for end in range(first + 1, len(history) + 1)]
    newest = {name: text for step in steps for name, text in step.items()}
    if not newest:
        return Finding("ok", [])
    at_once = any(True for row in history[first:] for _ in _not_finite(row))
    collapsed = at_once or sum(bool(step) for step in steps) >= settings.patience
    reasons = [
        f"{name} {text} in {sum(name in step for step in steps)} of {len(steps)} steps: {REMEDY[name]}"
        for name, text in newest.items()
    ]
    return Finding("collapsed" if collapsed else "warn", reasons)


def trimmed(history: Sequence[Row], settings: CollapseConfig) -> list[dict[str, float | None]]:
    """What `detect` needs of `history` once more rows follow: the start, the last rows, and the best reward so far."""
    rows = [dict(row) for row in history]
    # The oldest of the last rows is compared with a trend, whose own past is a window.
    tail = settings.window + 2 * settings.recent
    if len(rows) <= START_STEPS + tail:
        return rows
    best = best_reward(rows[: len(rows) - tail + settings.recent - 1], settings)
    return [*rows[:START_STEPS], {**rows[-tail], "reward_best": best}, *rows[1 - tail :]]


def _violations(history: Sequence[Row], settings: CollapseConfig) -> dict[str, str]:
    """What the last row of `history` violates: a sentence's rest by series; a passed limit says more than a jump."""
    return {**dict(_jumps(history, settings)), **dict(past_limits(history, settings)), **dict(_not_finite(history[-1]))}


def _not_finite(row: Row) -> Iterator[tuple[str, str]]:
    for name in ("loss", "grad_norm"):
        value = row.get(name)
        if value is not None and not math.isfinite(value):
            yield name, f"is {value}"


def _jumps(history: Sequence[Row], settings: CollapseConfig) -> Iterator[tuple[str, str]]:
    """Every figure of the last row that lies too many robust deviations from the window before it."""
    if reward_trend(history, settings) > _LEAP:
        return
    for name, jump in _JUMPS.items():
        value, past = history[-1].get(name), values_of(history[-1 - settings.window : -1], name)
        if value is None or len(past) < min(_ENOUGH, settings.window):
            continue
        middle, scale = centre_and_scale(past, floor=jump.floor, share=jump.share)
        z = (value - middle) / scale
        if z < 0 and name == "entropy" and reward_pays(history, settings):
            continue
        if (z > settings.z and jump.direction != "down") or (z < -settings.z and jump.direction != "up"):
            yield name, f"{value:.3g} is {abs(z):.1f} deviations from its median {middle:.3g} (bound {settings.z:g})"
