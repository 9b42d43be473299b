"""The table at the end of a run: before, after, and what each round gave."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from burnish.contracts.artifacts import StageRecord
from burnish.report.verdicts import STATUS_WORDS, Verdicts, stop_text


def print_summary(records: Sequence[StageRecord]) -> None:
    """Rounds and held-out pass@k, from the records of a finished run."""
    console = Console(highlight=False)
    rounds = sorted({record.round for record in records if record.round is not None and not record.skipped})
    if rounds:
        table = Table(title="rounds", title_justify="left", box=None, pad_edge=False)
        for column in ("round", "reward", "KL", "entropy", "length", "clipped", "ESS", "seconds"):
            table.add_column(column, justify="right")
        for round in rounds:
            there = [record for record in records if record.round == round]
            found = {record.stage: record for record in there if not record.shard}
            table.add_row(
                str(round),
                *(_cell(found, stage, metric) for stage, metric in _COLUMNS),
                f"{sum(record.timings.get('total', 0.0) for record in there):.0f}",
            )
        console.print(table)
    evaluations = {record.label: record for record in records if record.stage == "evaluate"}
    if evaluations:
        table = Table(title="held-out (95 % interval)", title_justify="left", box=None, pad_edge=False)
        names = [
            name for name in next(iter(evaluations.values())).metrics if name.startswith("pass@") and "/" not in name
        ]
        for column in ("", *names):
            table.add_column(column, justify="right")
        for label in ("before", "after"):
            if label in evaluations:
                table.add_row(label, *(_interval(evaluations[label], name) for name in names))
        console.print(table)


def print_verdicts(verdicts: Verdicts) -> None:
    """What the collapse detector has to say, a line each; nothing when all went well."""
    console = Console(highlight=False, soft_wrap=True)
    for found in verdicts.rounds:
        for reason in found.reasons:
            console.print(f"round {found.round}: {STATUS_WORDS[found.status]}: {reason}", markup=False, style="yellow")
    if verdicts.budget:
        console.print("; ".join(verdicts.budget.reasons), markup=False, style="yellow")
    if verdicts.stop:
        console.print(f"This run was {stop_text(verdicts)}.", markup=False, style="bold red")


_COLUMNS = (
    ("reward", "reward/mean"),
    ("logprob", "kl_ref"),
    ("logprob", "entropy"),
    ("rollout", "response_length_mean"),
    ("update", "clip_fraction"),
    ("logprob", "ess"),
)


def _cell(found: dict[str, StageRecord], stage: str, metric: str) -> str:
    value = found[stage].metrics.get(metric) if stage in found else None
    return "-" if value is None else f"{value:.3g}"


def _interval(record: StageRecord, name: str) -> str:
    value, low, high = (record.metrics.get(key) for key in (name, f"{name}/low", f"{name}/high"))
    if value is None or low is None or high is None:
        return "-"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
