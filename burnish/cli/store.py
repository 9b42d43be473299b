"""`burnish store ls|verify|gc`: what the store holds, whether it is sound, and what of it can go."""

import argparse
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from burnish.cli.home import Home
from burnish.contracts.errors import StoreError
from burnish.stages.progress import announce, progress
from burnish.store import ArtifactStore, open_store
from burnish.store.collection import collect, find_garbage
from burnish.store.inventory import list_artifacts, list_runs
from burnish.store.verify import inspect


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("store", help="list, verify or clean the object store")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    ls = actions.add_parser("ls", help="runs, or the artifacts of one run, with sizes")
    ls.add_argument("run", nargs="?", help="run id (default: list the runs)")
    ls.add_argument("--json", action="store_true", help="JSON on standard output")
    ls.set_defaults(handler=handle_ls)

    verify = actions.add_parser("verify", help="hash every blob again; exit status 4 when something is wrong")
    verify.add_argument("run", nargs="?", help="only what this run wrote")
    verify.add_argument("--json", action="store_true", help="JSON on standard output")
    verify.add_argument(
        "--delete", action="store_true", help="delete what is corrupt: the run's own command then makes it again"
    )
    verify.set_defaults(handler=handle_verify)

    gc = actions.add_parser("gc", help="delete what no run refers to; without --delete only say what would go")
    gc.add_argument("--delete", action="store_true", help="really delete")
    gc.add_argument(
        "--grace-hours",
        type=_hours,
        default=24.0,
        metavar="H",
        help="what is younger stays: a stage may be about to refer to it (default: 24)",
    )
    gc.add_argument(
        "--keep-trainer-states",
        type=_count,
        metavar="N",
        help="keep only the N newest trainer states of each run; earlier rounds cannot be resumed then",
    )
    gc.add_argument(
        "--forget-run", action="append", default=[], metavar="RUN", help="also delete this run's records (repeatable)"
    )
    gc.set_defaults(handler=handle_gc)
    for action in (ls, verify, gc):
        action.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")


def handle_ls(given: argparse.Namespace) -> int:
    with _store(given) as store:
        if given.run:
            lines = list_artifacts(store, given.run)
            if given.json:
                print(json.dumps([dataclasses.asdict(line) for line in lines], indent=2))
            else:
                table = _table("stage", "output", "kind", "digest", ">files", ">size", "counts")
                for line in lines:
                    counts = ", ".join(f"{count} {name}" for name, count in line.counts.items())
                    kind = line.kind or "(collected)"
                    size = decimal(line.size) if line.kind else ""
                    table.add_row(line.stage, line.output, kind, line.digest[:12], str(line.files), size, counts)
                _console().print(table)
            return 0
        totals = list_runs(store)
    if given.json:
        print(json.dumps(dataclasses.asdict(totals), indent=2))
        return 0
    table = _table("run", "started", ">stages", "failed", ">artifacts", ">size")
    for run in totals.runs:
        started = datetime.fromtimestamp(run.started_at).strftime("%Y-%m-%d %H:%M")
        failed = ", ".join(run.failed) or "-"
        table.add_row(run.run_id, started, str(run.stages), failed, str(run.artifacts), decimal(run.size))
    console = _console()
    console.print(table)
    console.print(f"{len(totals.runs)} runs; {totals.blobs} blobs, {decimal(totals.size)} stored")
    return 0


def handle_verify(given: argparse.Namespace) -> int:
    with _store(given) as store:
        inspection = inspect(store, given.run)
        total = len(inspection.manifest_faults) + len(inspection.blobs)
        started = time.monotonic()
        checks = list(inspection.run() if given.json else progress(inspection.run(), total, "verify", "objects"))
        faults = [check for check in checks if check.fault]
        corrupt = [check.key for check in faults if check.corrupt]
        if given.delete and corrupt:
            store.backend.delete(corrupt)
    size = sum(check.size for check in checks)
    if given.json:
        print(json.dumps({"checked": len(checks), "size": size, "faults": [dataclasses.asdict(f) for f in faults]}))
    else:
        console = _console()
        for check in faults:
            console.print(f"[red]✗[/] {check.key}: {check.fault}", soft_wrap=True)
        seconds = time.monotonic() - started
        verdict = f"{len(faults)} at fault" if faults else "all sound"
        if corrupt:
            verdict += (
                f", {len(corrupt)} deleted" if given.delete else "; `burnish store verify --delete` takes them away"
            )
        if faults:
            verdict += "; run their stages again"
        console.print(f"{len(checks)} objects, {decimal(size)} in {seconds:.1f} s: {verdict}")
    return StoreError.exit_code if faults else 0


def handle_gc(given: argparse.Namespace) -> int:
    with _store(given) as store:
        garbage = find_garbage(
            store,
            grace_s=given.grace_hours * 3600,
            keep_trainer_states=given.keep_trainer_states,
            forget_runs=given.forget_run,
        )
        console = _console()
        if not given.delete:
            for found in (*garbage.records, *garbage.results, *garbage.manifests, *garbage.blobs, *garbage.unfinished):
                console.print(f"  {found.key}  {decimal(found.size)}", soft_wrap=True)
        what = (
            f"{len(garbage.results)} results, {len(garbage.manifests)} manifests and {len(garbage.blobs)} blobs, "
            f"{decimal(garbage.size)}"
            + (f", and {len(garbage.unfinished)} unfinished writes" if garbage.unfinished else "")
        )
        if not given.delete:
            console.print(f"would delete {what}; say --delete to do it" if len(garbage) else "nothing to delete")
            return 0
        for line in collect(store, garbage):
            announce(line)
        console.print(f"deleted {what}" if len(garbage) else "nothing to delete")
    return 0


@contextlib.contextmanager
def _store(given: argparse.Namespace) -> Iterator[ArtifactStore]:
    """The configured store, or the embedded one of local runs while it is looked at."""
    if os.environ.get("BURNISH_STORE"):
        yield open_store()
        return
    from burnish.store.seaweed import start_seaweed

    home = Home.default(given.home)
    if not (home.root / "store").is_dir():
        raise StoreError(f"there are no local runs in {home.root}; set BURNISH_STORE or give --home")
    with home.lock(), start_seaweed(home.root) as environment:
        os.environ.update(environment)
        try:
            yield open_store()
        finally:
            for name in environment:
                del os.environ[name]


def _console() -> Console:
    return Console(highlight=False)


def _table(*columns: str) -> Table:
    """Columns that begin with > are aligned right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def _hours(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours; give 0 or more")


def _count(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a count; give 1 or more")
