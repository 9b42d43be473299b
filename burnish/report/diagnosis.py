"""Why a run does not learn, from its figures: a table of small rules, each with evidence and the setting to change.

docs/stability.md explains every rule under the same heading. Thresholds are experience, not law.
"""

from dataclasses import dataclass

from burnish.report import diagnosis_optimizer, diagnosis_rewards, diagnosis_sampling
from burnish.report.diagnosis_optimizer import DETECTOR
from burnish.report.figures import Figures
from burnish.report.run import RunView
from burnish.report.symptom import Rule, Symptom

__all__ = ["DETECTOR", "RULES", "Diagnosis", "diagnose"]

RULES: dict[str, Rule] = {**diagnosis_rewards.RULES, **diagnosis_sampling.RULES, **diagnosis_optimizer.RULES}
"""By heading in the guide."""


@dataclass(frozen=True)
class Diagnosis:
    """One likely cause."""

    rule: str
    symptom: Symptom


def diagnose(view: RunView) -> list[Diagnosis]:
    """The likely causes of what went wrong in a run, in the order of the table; empty for a healthy one."""
    figures = Figures(view)
    return [Diagnosis(name, symptom) for name, rule in RULES.items() if (symptom := rule(figures)) is not None]
