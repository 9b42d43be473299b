"""Median and MAD: what is usual in a series, unmoved by the odd outlier."""

from collections.abc import Sequence
from statistics import median

# Makes the MAD of normal noise its standard deviation.
_MAD_TO_SIGMA = 1.4826


def centre_and_scale(values: Sequence[float], *, floor: float, share: float) -> tuple[float, float]:
    """Median of `values`, and 1.4826 x MAD, at least `floor` and at least `share` of the median.

    The floors keep a constant past from making every change infinitely surprising.
    """
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return middle, max(_MAD_TO_SIGMA * deviation, share * abs(middle), floor)
