"""`burnish run`: the whole DAG on this machine, with an embedded object store and MLflow unless told otherwise."""

import argparse
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from burnish.cli.containers import check_daemon
from burnish.cli.home import Home, run_id_of
from burnish.cli.local_run import LocalEnd, add_local_arguments, run_locally, shown, start_services
from burnish.cli.settings import add_config_arguments, config_of
from burnish.cli.summary import print_summary, print_verdicts
from burnish.contracts.artifacts import Manifest
from burnish.contracts.errors import BurnishError
from burnish.contracts.stages import check_task_budget
from burnish.report.verdicts import read_verdicts
from burnish.store import open_store


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("run", help="run the whole pipeline on this machine")
    add_config_arguments(parser)
    add_local_arguments(parser)
    parser.add_argument("--tag", default=None, help="tag of the stage images (default: this version)")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    config = config_of(given)
    check_task_budget(config.rounds, config.rollout.shards, config.execute_shards)
    if given.runner == "docker":
        check_daemon()
    home = Home.default(given.home)
    run_id = run_id_of(config)
    log = home.run_dir(run_id) / "run.log"
    signal.signal(signal.SIGTERM, interrupt)
    with home.lock(), ExitStack() as services:
        environment = start_services(given, home, services)
        os.environ.update(environment)
        store = open_store()
        print(f"run {run_id}: {config.rounds} rounds, log {shown(log)}", flush=True)
        end = run_locally(given, config, run_id, home, environment)
        digests = [record.outputs.get("updated_verdict") for record in end.records if end.status == 0]
        verdicts = {digest: store.get_manifest(digest) for digest in digests if digest}
        return _conclude(end, verdicts, log.parent, home)


def _conclude(end: LocalEnd, verdicts: Mapping[str, Manifest], run_dir: Path, home: Home) -> int:
    """Print how the run ended; `verdicts` are manifests by digest. Raises BurnishError when it failed."""
    failure = end.failure(run_dir / "run.log")
    if not failure:
        print_summary(end.records)
        print_verdicts(read_verdicts(end.records, verdicts))
    report = run_dir / "report.html"
    if report.exists():
        print(f"report  {shown(report)}")
    print(f"mlflow  {shown(home.root / 'mlflow.db')}; `burnish ui{_home_flag(home)}` opens it and the report")
    if failure:
        raise BurnishError(failure)
    return 0


def _home_flag(home: Home) -> str:
    return "" if home == Home.default() else f" --home {shown(home.root)}"


def interrupt(number: int, frame: FrameType | None) -> None:
    """Signal handler: end like Ctrl-C, so that what was started is stopped."""
    raise KeyboardInterrupt
