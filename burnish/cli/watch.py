"""Watching a run on Kubeflow Pipelines to its end: a live DAG on a terminal, a line a change in a pod or a log.

A KFP that is away for a while does not end the watch, and ending the watch does not end the run.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from burnish.cli.kfp_client import explained
from burnish.cli.kfp_failure import failure_of
from burnish.cli.kfp_progress import Progress, State, Task, progress_of, tasks_of
from burnish.contracts.errors import BurnishError

if TYPE_CHECKING:
    import kfp

ENDS = {"SUCCEEDED", "FAILED", "SKIPPED", "CANCELED"}
_MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "starting": ("…", "yellow"),
    "running": ("▶", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "skipped": ("-", "dim"),
    "canceled": ("✗", "yellow"),
}


def watch(client: "kfp.Client", host: str, run_id: str, *, poll_s: float = 5.0, patience_s: float = 300.0) -> int:
    """Follow KFP's run `run_id`; 0 when it succeeded, 1 otherwise, 130 when interrupted. Raises BurnishError."""
    console = Console(highlight=False)
    try:
        return _follow(client, host, run_id, console, poll_s, patience_s)
    except KeyboardInterrupt:
        console.print(
            f"The run goes on; to watch it again: burnish submit --host {host} --attach {run_id}", style="dim"
        )
        return 130


def _follow(client: "kfp.Client", host: str, run_id: str, console: Console, poll_s: float, patience_s: float) -> int:
    with explained(host):
        run = client.get_run(run_id)
        tasks = tasks_of_run(client, run)
    with _LiveDag(console) if console.is_terminal else _Lines(console) as view:
        while True:
            details = (run.run_details and run.run_details.task_details) or []
            progress = progress_of(tasks, details)
            view.show(progress)
            if run.state in ENDS:
                break
            time.sleep(poll_s)
            run = patiently(client, host, run_id, view.note, patience_s)
    failed = failures_of(client, run_id, details, progress)
    for title, why in failed.items():
        console.print(f"[bold red]{escape(title)}[/] failed: {escape(why)}", soft_wrap=True)
    if run.state == "FAILED" and not failed and run.error and run.error.message:
        console.print(run.error.message, markup=False, soft_wrap=True)
    # Argo calls a workflow a success whose exit handler succeeded after a task inside failed.
    succeeded = run.state == "SUCCEEDED" and not failed
    console.print(f"run {run_id}: {'succeeded' if succeeded else 'failed' if failed else run.state.lower()}")
    return 0 if succeeded else 1


def failures_of(
    client: "kfp.Client", run_id: str, details: Sequence[Any], progress: Sequence[Progress]
) -> dict[str, str]:
    """Why each task failed that did, by its title."""
    failed = [one.task for one in progress if one.state == "failed"]
    return {task.title: failure_of(client, run_id, details, task, sole=len(failed) == 1) for task in failed}


def tasks_of_run(client: "kfp.Client", run: Any) -> list[Task]:
    """Leaves of the DAG of KFP's `run`. Raises BurnishError."""
    spec, source = run.pipeline_spec, run.pipeline_version_reference
    if not spec and source:
        spec = client.get_pipeline_version(source.pipeline_id, source.pipeline_version_id).pipeline_spec
    if not spec:
        raise BurnishError(f"KFP does not say which pipeline run {run.run_id} is of; look at it in the UI")
    return tasks_of(spec)


def patiently(client: "kfp.Client", host: str, run_id: str, note: Callable[[str], None], patience_s: float) -> Any:
    """KFP's run; asks again while the API is away, for `patience_s` at most, and `note`s it. Raises BurnishError."""
    from kfp_server_api.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    started, pause = time.monotonic(), 1.0
    while True:
        try:
            return client.get_run(run_id)
        except (ApiException, HTTPError, OSError) as error:
            passing = not isinstance(error, ApiException) or error.status >= 500 or error.status in {0, 429}
            if not passing or time.monotonic() - started > patience_s:
                with explained(host):
                    raise
            note("KFP does not answer; trying again")
        time.sleep(pause)
        pause = min(pause * 2, 30.0)


class _View(Protocol):
    def show(self, progress: Sequence[Progress]) -> None: ...

    def note(self, text: str) -> None: ...


class _Lines:
    """What changed since last time, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, State] = {}
        self._noted = ""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, progress: Sequence[Progress]) -> None:
        self._noted = ""
        for one in progress:
            if one.state != self._last.get(one.task.name, "waiting"):
                self._last[one.task.name] = one.state
                mark = _MARKS[one.state][0]
                seconds = f" in {one.seconds:.0f} s" if one.state in {"done", "failed"} and one.seconds else ""
                self._console.print(f"{mark} {one.title:<24} {one.state}{seconds}", markup=False)

    def note(self, text: str) -> None:
        if text != self._noted:
            self._console.print(text, markup=False)
        self._noted = text


class _LiveDag:
    """The whole DAG, a row a round, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "_LiveDag":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, progress: Sequence[Progress]) -> None:
        self._live.update(dag_table(progress), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(text, style="yellow")


def dag_table(progress: Sequence[Progress]) -> Table:
    """A row for each round and for each task outside of them: marks, names and seconds of its tasks."""
    rows: dict[str, list[str]] = {}
    for one in progress:
        row, _, name = one.title.partition(" - ")
        mark, style = _MARKS[one.state]
        seconds = f"{one.seconds:.0f} s" if one.seconds is not None else ""
        cell = " ".join(filter(None, (mark, escape(name), seconds)))
        rows.setdefault(row, []).append(f"[{style}]{cell}[/]")
    table = Table(box=None, show_header=False, pad_edge=False)
    for row, cells in rows.items():
        table.add_row(escape(row), *cells)
    return table
