"""One run of the DAG on this machine: its services, its process, what it left. `run` and `campaign` stand on it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from burnish.cli.console import Ending, follow
from burnish.cli.containers import remove_containers
from burnish.cli.home import Home
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import dump_config
from burnish.stages.component import SUPERVISOR_VARIABLE
from burnish.store import ArtifactStore, open_store
from burnish.store.seaweed import start_seaweed
from burnish.track.local_server import start_mlflow


@dataclass(frozen=True)
class LocalEnd:
    """How an attempt at a run ended."""

    status: int
    """Of the DAG's process; 0: all stages are done."""
    ending: Ending
    records: list[StageRecord]
    """Of all attempts."""
    began: float
    """Unix time of this attempt's start."""

    def failure(self, log: Path) -> str | None:
        """One line on why the attempt failed, which names the run's `log` where nothing else is known."""
        # An earlier attempt of the same run leaves its error behind where this one did not get as far.
        failed = [record for record in self.records if record.error and record.finished_at >= self.began]
        if failed:
            return f"{failed[0].title}: {failed[0].error}"
        if self.status == 0:
            return None
        if self.ending.error:
            return f"{self.ending.unfinished or 'a stage'}: {self.ending.error}"
        where = f"{self.ending.unfinished or 'the DAG'} ended without a result (killed, or out of memory)"
        return f"{where}; see {shown(log)}; the same command goes on from there"


def add_local_arguments(parser: argparse.ArgumentParser) -> None:
    """Where and how runs happen on this machine."""
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    parser.add_argument(
        "--runner", choices=("subprocess", "docker"), default="subprocess",
        help="each stage as a process of this environment, or as a container of its own image",
    )  # fmt: skip
    parser.add_argument("--images", default="burnish", help="prefix of the stage images, for --runner docker")
    parser.add_argument(
        "--s3-port", type=int, default=0, help="port of the embedded object store (default: a free one)"
    )
    parser.add_argument("--no-mlflow", action="store_true", help="do not start an MLflow server")


def start_services(given: argparse.Namespace, home: Home, services: ExitStack) -> dict[str, str]:
    """The embedded store and MLflow, unless the environment names others; gives what stages need to find them."""
    environment: dict[str, str] = {}
    if not os.environ.get("BURNISH_STORE"):
        environment |= services.enter_context(start_seaweed(home.root, given.s3_port))
    if not given.no_mlflow and not os.environ.get("MLFLOW_TRACKING_URI"):
        server = services.enter_context(start_mlflow(home.root))
        environment["MLFLOW_TRACKING_URI"] = server.uri
    return environment


def run_locally(
    given: argparse.Namespace,
    config: RunConfig,
    run_id: str,
    home: Home,
    environment: dict[str, str],
    *,
    stage_lines: bool = True,
) -> LocalEnd:
    """Run the DAG of `config` to its end and put its report into the run's folder.

    environment: as `start_services` gave it. stage_lines: print one for each stage that is done.
    """
    run_dir = home.run_dir(run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(dump_config(config), "utf-8")
    _point_latest(home, run_id)
    store = open_store()
    began = time.time()
    status, ending = _run_dag(given, run_id, run_dir, environment, stage_lines)
    records = store.run_records(run_id)
    _save_report(store, records, run_dir)
    return LocalEnd(status, ending, records, began)


def _run_dag(
    given: argparse.Namespace, run_id: str, run_dir: Path, environment: dict[str, str], stage_lines: bool
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
            ending = follow(child.stdout, log, stage_lines=stage_lines)
        return child.wait(), ending
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if given.runner == "docker":
            remove_containers(run_id)


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


def shown(path: Path) -> str:
    """`path` as people see it from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
