"""Limits that the figures of a healthy step stay within: shares, and ratios to a run's own start or best.

Thresholds come from CollapseConfig. What was not measured (None) violates nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from burnish.contracts.algorithm import CollapseConfig
from burnish.maths.robust import centre_and_scale

Row = Mapping[str, float | None]

START_STEPS = 5
"""First steps that baselines are taken from."""
# Nats. A policy that starts below is near deterministic, and ratios to its start mean nothing.
_ENTROPY_FLOOR = 0.05
# Nats. KL starts at 0 and grows in every healthy run: a lower baseline counts as this.
_KL_FLOOR = 0.05
# Robust deviations. Rare successes make rewards noisy: a drop counts when it is also beyond that noise.
_REWARD_NOISE = 3.0
_REWARD_FLOOR, _REWARD_SHARE = 0.02, 0.05


def past_limits(history: Sequence[Row], settings: CollapseConfig) -> Iterator[tuple[str, str]]:
    """(series, value and bound) for every figure of the last row that is past its limit."""
    row, before = history[-1], history[:-1]
    trend = reward_trend(history, settings)

    def value(name: str) -> float:
        """NaN for what was not measured: it compares false with every bound."""
        found = row.get(name)
        return math.nan if found is None else found

    def above(name: str, bound: float, why: str = "") -> Iterator[tuple[str, str]]:
        if value(name) > bound:
            yield name, f"{value(name):.3g} is above {bound:.3g}{why}"

    def below(name: str, bound: float, why: str = "") -> Iterator[tuple[str, str]]:
        if value(name) < bound:
            yield name, f"{value(name):.3g} is below {bound:.3g}{why}"

    if start := values_of(before[:START_STEPS], "entropy"):
        base = median(start)
        factor = settings.entropy_high
        yield from above("entropy", factor * max(base, _ENTROPY_FLOOR), f" ({factor:g} x its start)")
        if base > _ENTROPY_FLOOR and not reward_pays(history, settings):
            factor = settings.entropy_low
            yield from below("entropy", factor * base, f" ({factor:g} x its start)")
    # The last steps are no baseline: KL that runs away from the start would take it along.
    usual = values_of(before[-settings.window : -settings.recent], "kl")
    baseline = max(_KL_FLOOR, median(usual) if usual else 0.0)
    yield from above("kl", settings.kl_factor * baseline, f" ({settings.kl_factor:g} x its baseline)")
    yield from above("mismatch", settings.mismatch_max)
    yield from above("clip_fraction", settings.clip_max)
    yield from below("ess", settings.ess_min)
    if trend < -1:
        yield from above("truncated_share", settings.truncated_max, " while the reward falls")
    best, past = best_reward(before, settings), values_of(before[-settings.window :], "reward")
    if past and best is not None and best > 0:
        noise = centre_and_scale(past, floor=_REWARD_FLOOR, share=_REWARD_SHARE)[1]
        if best - value("reward") > _REWARD_NOISE * noise:
            factor = settings.reward_drop
            yield from below("reward", factor * best, f" ({factor:g} x its best average)")


def reward_trend(history: Sequence[Row], settings: CollapseConfig) -> float:
    """Mean reward of the last `recent` rows over the median of the window before, in that window's deviations.

    0 while too little was measured to say.
    """
    now = values_of(history[-settings.recent :], "reward")
    past = values_of(history[-settings.recent - settings.window : -settings.recent], "reward")
    if not now or len(past) < START_STEPS:
        return 0.0
    middle, scale = centre_and_scale(past, floor=_REWARD_FLOOR, share=_REWARD_SHARE)
    return (fmean(now) - middle) / scale


def reward_pays(history: Sequence[Row], settings: CollapseConfig) -> bool:
    """Whether the reward stands at its best, within noise, and above its start: low entropy is then what it took."""
    now, past = (values_of(rows, "reward") for rows in (history[-settings.recent :], history[-settings.window :]))
    start, best = values_of(history[:START_STEPS], "reward"), best_reward(history, settings)
    if not now or not start or best is None:
        return False
    noise = centre_and_scale(past, floor=_REWARD_FLOOR, share=_REWARD_SHARE)[1]
    return fmean(now) > max(best, median(start) + 2 * noise) - noise


def best_reward(history: Sequence[Row], settings: CollapseConfig) -> float | None:
    """Highest moving average of the reward over `recent` rows, at least half of them measured.

    A row may stand for earlier ones that are gone and bring their best, as `reward_best`.
    """
    best: float | None = None
    last: list[Row] = []
    for row in history:
        known = row.get("reward_best")
        last = [*last[1 - settings.recent :], row] if known is None and settings.recent > 1 else [row]
        rewards = values_of(last, "reward")
        average = fmean(rewards) if len(last) == settings.recent <= 2 * len(rewards) else None
        best = max((value for value in (best, known, average) if value is not None), default=None)
    return best


def values_of(history: Sequence[Row], name: str) -> list[float]:
    """What was measured of a series, finite."""
    return [value for row in history if (value := row.get(name)) is not None and math.isfinite(value)]
