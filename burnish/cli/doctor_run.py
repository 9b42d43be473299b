"""`burnish doctor --run`: why a run does not learn: likely causes, the figures behind them, the setting to change."""

import textwrap

from rich.console import Console

from burnish.cli.home import Home
from burnish.cli.past_run import past_run
from burnish.report.diagnosis import RULES, Diagnosis, diagnose
from burnish.report.run import RunView
from burnish.report.summary import failures

GUIDE = "docs/stability.md"


def diagnose_run(home: Home, run_id: str | None) -> int:
    """Print the diagnosis of a run (None: the latest); 1 when there is something to change, else 0."""
    with past_run(home, run_id) as view:
        found = diagnose(view)
        print_diagnosis(view, found)
    return 1 if found or failures(view) else 0


def print_diagnosis(view: RunView, found: list[Diagnosis]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    rounds = sum(record.stage == "update" and not record.skipped and not record.error for record in view.records)
    console.print(f"run {view.run_id}: {rounds} of {view.config.rounds} rounds")
    for record in failures(view):
        console.print(f"[red]✗[/] {record.title} failed")
        _line(console, "error", record.error or "")
    for diagnosis in found:
        console.print(f"[red]✗[/] [bold]{diagnosis.rule}[/]")
        _line(console, "cause", diagnosis.symptom.cause)
        _line(console, "evidence", diagnosis.symptom.evidence)
        _line(console, "change", diagnosis.symptom.change)
    if found:
        console.print(f"  {GUIDE} explains each by its name.")
    elif rounds:
        console.print(f"[green]✓[/] healthy: none of {len(RULES)} rules found anything")
    else:
        console.print("  no round has finished, so there is nothing to judge yet")


def _line(console: Console, name: str, text: str) -> None:
    indent = " " * 13
    # An error may quote what a model wrote: no control characters reach the terminal.
    text = "".join(character for character in text if character.isprintable())
    wrapped = textwrap.fill(text, 110, initial_indent=f"  {name:<11}", subsequent_indent=indent, break_long_words=False)
    console.print(wrapped, markup=False)
