"""What the rules of a diagnosis have in common: they look at a run's figures and return a symptom or nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from burnish.report.figures import Figures


@dataclass(frozen=True)
class Symptom:
    """What was seen, what it means, and what to do."""

    cause: str
    """One sentence."""
    evidence: str
    """Figures of this run."""
    change: str
    """Settings as `a.b=c`, with the reason where it is not plain."""


Rule = Callable[[Figures], Symptom | None]
