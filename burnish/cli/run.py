"""`burnish run`: the whole DAG on this machine, with an embedded object store and MLflow unless told otherwise."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from burnish.cli.console import Ending, follow
from burnish.cli.containers import check_daemon, remove_containers
from burnish.cli.home import Home, run_id_of
from burnish.cli.settings import add_config_arguments, config_of
from burnish.cli.summary import print_summary, print_verdicts
from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError
from burnish.contracts.loading import dump_config
from burnish.contracts.stages import check_task_budget
from burnish.report.verdicts import read_verdicts
from burnish.stages.component import SUPERVISOR_VARIABLE
from burnish.store import ArtifactStore, open_store
from burnish.store.seaweed import start_seaweed
from burnish.track.local_server import start_mlflow


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("run", help="run the whole pipeline on this machine")
    add_config_arguments(parser)
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    parser.add_argument(
        "--runner", choices=("subprocess", "docker"), default="subprocess",
        help="each stage as a process of this environment, or as a container of its own image",
    )  # fmt: skip
    parser.add_argument("--images", default="burnish", help="prefix of the stage images, for --runner docker")
    parser.add_argument("--tag", default=None, help="tag of the stage images (default: this version)")
    parser.add_argument(
        "--s3-port", type=int, default=0, help="port of the embedded object store (default: a free one)"
    )
    parser.add_argument("--no-mlflow", action="store_true", help="do not start an MLflow server")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    config = config_of(given)
    check_task_budget(config.rounds)
    if given.runner == "docker":
        check_daemon()
    home = Home.default(given.home)
    run_id = run_id_of(config)
    run_dir = home.run_dir(run_id)
    signal.signal(signal.SIGTERM, _interrupt)
    with home.lock(), ExitStack() as services:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(dump_config(config), "utf-8")
        _point_latest(home, run_id)
        environment = _start_services(given, home, services)
        os.environ.update(environment)
        store = open_store()
        print(f"run {run_id}: {config.rounds} rounds, log {_shown(run_dir / 'run.log')}", flush=True)
        began = time.time()
        status, ending = _run_dag(given, config, run_id, run_dir, environment)
        records = store.run_records(run_id)
        _save_report(store, records, run_dir)
        digests = [record.outputs.get("updated_verdict") for record in records if status == 0]
        verdicts = {digest: store.get_manifest(digest) for digest in digests if digest}
        return _conclude(status, ending, records, verdicts, run_dir, home, began=began)


def _start_services(given: argparse.Namespace, home: Home, services: ExitStack) -> dict[str, str]:
    environment: dict[str, str] = {}
    if not os.environ.get("BURNISH_STORE"):
        environment |= services.enter_context(start_seaweed(home.root, given.s3_port))
    if not given.no_mlflow and not os.environ.get("MLFLOW_TRACKING_URI"):
        server = services.enter_context(start_mlflow(home.root))
        environment["MLFLOW_TRACKING_URI"] = server.uri
    return environment


def _run_dag(
    given: argparse.Namespace, config: RunConfig, run_id: str, run_dir: Path, environment: dict[str, str]
) -> tuple[int, Ending]:
    """Run the DAG in a child process; returns its exit status and how its output ended."""
    request = {
        "run_id": run_id,
        "config": str(run_dir / "config.yaml"),
        "pipeline_root": str(run_dir / "kfp"),
        "runner": given.runner,
        "images": given.images,
        "tag": given.tag,
        "environment": environment,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "burnish.cli.local_dag"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, SUPERVISOR_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps(request))
        child.stdin.close()
        with (run_dir / "run.log").open("a", encoding="utf-8") as log:
            ending = follow(child.stdout, log)
        return child.wait(), ending
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if given.runner == "docker":
            remove_containers(run_id)


def _conclude(
    status: int,
    ending: Ending,
    records: list[StageRecord],
    verdicts: Mapping[str, Manifest],
    run_dir: Path,
    home: Home,
    *,
    began: float,
) -> int:
    """Print how the run ended; `verdicts` are manifests by digest, `began` is when this attempt started."""
    # An earlier attempt of the same run leaves its error behind where this one did not get as far.
    failed = [record for record in records if record.error and record.finished_at >= began]
    if status == 0 and not failed:
        print_summary(records)
        print_verdicts(read_verdicts(records, verdicts))
    report = run_dir / "report.html"
    if report.exists():
        print(f"report  {_shown(report)}")
    print(f"mlflow  {_shown(home.root / 'mlflow.db')}; `burnish ui{_home_flag(home)}` opens it and the report")
    if failed:
        raise BurnishError(f"{failed[0].title}: {failed[0].error}")
    if status != 0 and ending.error:
        raise BurnishError(f"{ending.unfinished or 'a stage'}: {ending.error}")
    if status != 0:
        where = f"{ending.unfinished or 'the DAG'} ended without a result (killed, or out of memory)"
        raise BurnishError(f"{where}; see {_shown(run_dir / 'run.log')}; the same command goes on from there")
    return 0


def _save_report(store: ArtifactStore, records: list[StageRecord], run_dir: Path) -> None:
    for record in records:
        if record.stage == "report" and "report" in record.outputs:
            with tempfile.TemporaryDirectory(prefix="burnish-report-") as folder:
                # Fetched files are read-only links into the cache; people get files of their own.
                store.fetch(store.get_manifest(record.outputs["report"]), Path(folder) / "files")
                for file in (Path(folder) / "files").iterdir():
                    draft = run_dir / f".{file.name}.part"
                    draft.write_bytes(file.read_bytes())
                    draft.replace(run_dir / file.name)


def _point_latest(home: Home, run_id: str) -> None:
    link = home.root / "runs" / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to(run_id)


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _home_flag(home: Home) -> str:
    return "" if home == Home.default() else f" --home {_shown(home.root)}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
