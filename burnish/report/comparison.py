"""Before and after: pass@k of two evaluations side by side, and whether the change is more than noise.

Prompts are compared in pairs, because the same held-out prompts were asked twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.contracts.evaluation import Evaluation, Score
from burnish.maths.passk import bootstrap_interval, pass_at_k

RESAMPLES = 2000


@dataclass(frozen=True)
class Change:
    """Mean of after - before over the prompts that both evaluations scored, with its 95 % interval."""

    mean: float
    low: float
    high: float
    prompts: int

    @property
    def beyond_noise(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Row:
    """pass@k of one task (None: all), before and after."""

    task: str | None
    k: int
    before: Score | None
    after: Score | None
    change: Change | None


def compare(evaluations: Mapping[str, Evaluation]) -> list[Row]:
    """One row per task and k that either evaluation has; overall rows first, k rising. A sole task is overall."""
    before, after = evaluations.get("before"), evaluations.get("after")
    scores = {
        label: {(score.task, score.k): score for score in evaluation.scores} if evaluation else {}
        for label, evaluation in (("before", before), ("after", after))
    }
    keys = sorted({*scores["before"], *scores["after"]}, key=lambda key: (key[0] is not None, key[0] or "", key[1]))
    if len({task for task, _ in keys}) == 2:
        keys = [key for key in keys if key[0] is None]
    return [
        Row(
            task,
            k,
            scores["before"].get((task, k)),
            scores["after"].get((task, k)),
            paired_change(before, after, k, task) if before and after else None,
        )
        for task, k in keys
    ]


def paired_change(before: Evaluation, after: Evaluation, k: int, task: str | None = None) -> Change | None:
    """Paired bootstrap over prompts of pass@k's change; None when no prompt has k verdicts in both."""
    old = {outcome.prompt_id: outcome for outcome in before.outcomes}
    differences = [
        pass_at_k(new.samples, new.passed, k) - pass_at_k(old[new.prompt_id].samples, old[new.prompt_id].passed, k)
        for new in after.outcomes
        if new.prompt_id in old and task in (None, new.task) and min(new.samples, old[new.prompt_id].samples) >= k
    ]
    if not differences:
        return None
    low, high = bootstrap_interval(differences, RESAMPLES, seed=0)
    return Change(sum(differences) / len(differences), low, high, len(differences))


def verdict(row: Row) -> str:
    """One plain sentence on a row, for people who skip tables."""
    name = f"pass@{row.k}"
    if row.before is None or row.before.value is None or row.after is None or row.after.value is None:
        return f"{name} was not measured both before and after, so there is no change to report."
    move = f"{name} went from {row.before.value:.1%} to {row.after.value:.1%}"
    if row.change is None:
        return f"{move}, on prompts that do not match, so the change cannot be told from noise."
    detail = (
        f"{row.change.mean * 100:+.1f} points, 95 % interval {row.change.low * 100:+.1f} to "
        f"{row.change.high * 100:+.1f}, paired over {row.change.prompts} prompts"
    )
    if not row.change.beyond_noise:
        return f"{move}: within noise ({detail})."
    direction = "an improvement" if row.change.mean > 0 else "a loss"
    return f"{move}: {direction} beyond noise ({detail})."
