"""What one check of `burnish doctor` found, and how a list of findings is shown."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape


@dataclass(frozen=True)
class Finding:
    """What one check found; `fix` is given exactly when it failed."""

    subject: str
    detail: str
    fix: str | None = None
    checked: bool = True
    """False: it could not be looked at from here, which is no failure; `detail` says why."""


def print_findings(findings: Iterable[Finding], width: int = 8) -> int:
    """Show each as it comes, subjects in a column of `width`; returns the exit status, 1 after a failure."""
    console = Console(highlight=False)
    failures = 0
    for finding in findings:
        failures += finding.fix is not None
        mark = "[red]✗[/]" if finding.fix else "[green]✓[/]" if finding.checked else "[yellow]?[/]"
        console.print(f"{mark} {finding.subject:<{width}} {escape(finding.detail)}", soft_wrap=True)
        if finding.fix:
            console.print(f"  {'':<{width}} fix: {escape(finding.fix)}", soft_wrap=True)
    return 1 if failures else 0
