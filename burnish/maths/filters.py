"""Which completions look broken: far longer than the rest, or repeating themselves.

Pure Python on counts and ids; what a filter leaves out is the update stage's decision.
"""

from collections.abc import Sequence
from statistics import median


def length_outliers(lengths: Sequence[int], quantile: float | None = None, mad: float | None = None) -> list[bool]:
    """Per length: is it longer than the `quantile` of all, or than the median by more than `mad` deviations?

    The quantile is interpolated linearly. The deviation is the median absolute deviation, at least 1 token: where more
    than half are equally long it would be 0 and any other length an outlier. None turns a test off.
    """
    if not lengths:
        return []
    limits = []
    if quantile is not None:
        limits.append(_quantile(lengths, quantile))
    if mad is not None:
        middle = median(lengths)
        limits.append(middle + mad * max(median(abs(length - middle) for length in lengths), 1.0))
    return [any(length > limit for limit in limits) for length in lengths]


def repeated_share(tokens: Sequence[int], n: int) -> float:
    """Share of the `n`-grams of `tokens` that occurred before in it; 0 for fewer than `n` tokens."""
    count = len(tokens) - n + 1
    if count < 1:
        return 0.0
    return 1.0 - len({tuple(tokens[at : at + n]) for at in range(count)}) / count


def _quantile(values: Sequence[int], share: float) -> float:
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
