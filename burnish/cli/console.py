"""Following a run: the DAG's output goes to the log, what people follow it by goes to the terminal."""

import re
import time
from collections.abc import Iterable
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from burnish.stages.progress import MARK

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_KFP_FAILURE = re.compile(r"Task '([^']+)' finished with status FAILURE")


class Ending(NamedTuple):
    """How the DAG's output ended."""

    unfinished: str | None
    """Stage that started and did not finish; KFP's name for one that was killed before it could say that it started."""
    error: str | None
    """The first error a stage printed."""


def follow(lines: Iterable[str], log: TextIO, *, stage_lines: bool = True) -> Ending:
    """Copy `lines` to `log` and show the marked ones, live on a terminal, plain otherwise.

    stage_lines: leave a line for each stage that is done; without, nothing stays on the terminal.
    """
    console = Console(highlight=False)
    unfinished: list[str] = []
    error: str | None = None
    started = time.monotonic()
    with Status("starting", console=console) if console.is_terminal else _NoStatus() as status:
        for line in lines:
            log.write(line)
            log.flush()
            text = _ANSI.sub("", line).strip()
            if text.startswith(MARK):
                title, _, rest = text.removeprefix(MARK).partition(": ")
                if rest == "started":
                    unfinished.append(title)
                    status.update(escape(f"{title} …"))
                elif rest.startswith(("done", "result is known")):
                    if title in unfinished:
                        unfinished.remove(title)
                    total = time.monotonic() - started
                    line = escape(f"{title:<24} {rest:<32}")
                    if stage_lines:
                        console.print(f"[green]✓[/] {line} [dim]{total:6.0f} s[/]")
                else:
                    status.update(escape(f"{title}: {rest}"))
                    if stage_lines and not console.is_terminal:
                        console.print(f"  {title}: {rest}", markup=False)
            elif text.startswith("error: "):
                error = error or text.removeprefix("error: ")
            elif (failure := _KFP_FAILURE.search(text)) and not unfinished:
                unfinished.append(failure[1])
    return Ending(unfinished[0] if unfinished else None, error)


class _NoStatus:
    """Where there is no terminal, lines are enough."""

    def __enter__(self) -> "_NoStatus":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, text: str) -> None:
        return None
