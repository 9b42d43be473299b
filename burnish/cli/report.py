"""`burnish report`: write a run's report again from what lies in the object store, finished or not."""

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from burnish.cli.home import Home
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError
from burnish.contracts.loading import load_config
from burnish.store import ArtifactStore, open_store


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("report", help="write the report of a run again, also while it runs")
    parser.add_argument("run_id", nargs="?", help="run id (default: the latest run of this home)")
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    parser.add_argument("--out", help="folder of the report (default: the run's folder in the home)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from burnish.stages.report import PAGE, collect_run, write_report

    home = Home.default(given.home)
    run_id = given.run_id or _latest(home)
    with ExitStack() as services:
        store = _open_store(home, services)
        records = store.run_records(run_id)
        if not records:
            known = ", ".join(store.run_ids()) or "none"
            raise BurnishError(f"run {run_id!r} left no records in this store; runs here: {known}")
        with tempfile.TemporaryDirectory(prefix="burnish-report-") as scratch:
            config = _config_of(home, run_id, records, store, Path(scratch))
            folder = Path(given.out) if given.out else home.run_dir(run_id)
            write_report(collect_run(store, run_id, config, Path(scratch) / "files"), folder)
    page = (folder / PAGE).absolute()
    print(f"report  {page}")
    if given.open:
        import webbrowser

        webbrowser.open(page.as_uri())
    return 0


def _latest(home: Home) -> str:
    latest = home.run_dir("latest")
    if not latest.exists():
        raise BurnishError(f"no run in {str(home.root)!r} yet; give a run id, or another folder with --home")
    return latest.resolve().name


def _open_store(home: Home, services: ExitStack) -> ArtifactStore:
    """The configured store, or the embedded one of this home."""
    if not os.environ.get("BURNISH_STORE"):
        from burnish.store.seaweed import start_seaweed

        os.environ.update(services.enter_context(start_seaweed(home.root)))
    return open_store()


def _config_of(home: Home, run_id: str, records: list[StageRecord], store: ArtifactStore, scratch: Path) -> RunConfig:
    """The configuration that validate resolved; before that, the one `burnish run` noted."""
    for record in records:
        if "resolved" in record.outputs:
            store.fetch(store.get_manifest(record.outputs["resolved"]), scratch / "config")
            return load_config(scratch / "config" / "config.yaml")
    noted = home.run_dir(run_id) / "config.yaml"
    if noted.exists():
        return load_config(noted)
    raise BurnishError(f"run {run_id!r} has no resolved configuration: its validate stage did not finish")
