"""Whether what a program gave is what was expected: returned values, and text by one of four rules."""

import math
import re
from collections.abc import Callable
from typing import Any

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")


def equal_values(got: Any, expected: Any) -> bool:
    """Python's equality on plain values; JSON knows no tuples, so they equal lists, and floats may be a hair off."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(equal_values, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(equal_values(got[key], expected[key]) for key in got)
    if isinstance(got, bool) != isinstance(expected, bool):
        return False
    if isinstance(got, float) or isinstance(expected, float):
        numbers = isinstance(got, int | float) and isinstance(expected, int | float)
        return numbers and (got == expected or math.isclose(got, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE))
    return bool(got == expected)


def equal_texts(got: str, expected: str, rule: str, tolerance: float) -> bool:
    """Whether two texts are equal by one of `RULES`."""
    return RULES[rule](got, expected, tolerance)


def _exact(got: str, expected: str, tolerance: float) -> bool:
    return got == expected


def _lines(got: str, expected: str, tolerance: float) -> bool:
    """But for blanks at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in got.rstrip().splitlines()] == [
        line.rstrip() for line in expected.rstrip().splitlines()
    ]


def _whitespace(got: str, expected: str, tolerance: float) -> bool:
    """The same words in the same order, whatever is between them."""
    return got.split() == expected.split()


def _float(got: str, expected: str, tolerance: float) -> bool:
    """The same words; numbers may differ by `tolerance`, absolute or relative."""
    words, wanted = got.split(), expected.split()
    return len(words) == len(wanted) and all(_close(*pair, tolerance) for pair in zip(words, wanted, strict=True))


def _close(got: str, expected: str, tolerance: float) -> bool:
    if got == expected:
        return True
    if not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    values = float(got), float(expected)
    # Too large for a float: all infinite, which says nothing about their being close.
    return all(map(math.isfinite, values)) and math.isclose(*values, rel_tol=tolerance, abs_tol=tolerance)


RULES: dict[str, Callable[[str, str, float], bool]] = {
    "whitespace": _whitespace,
    "lines": _lines,
    "exact": _exact,
    "float": _float,
}
