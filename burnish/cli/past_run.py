"""A run that is over, or still going, read back from the object store: for the verbs that look at one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from burnish.cli.home import Home
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError
from burnish.contracts.loading import load_config
from burnish.report.run import RunView
from burnish.store import ArtifactStore, open_store


@contextmanager
def past_run(home: Home, run_id: str | None) -> Iterator[RunView]:
    """All that run `run_id` left (None: the latest of this home). Raises BurnishError when there is no such run."""
    from burnish.stages.report import collect_run

    run_id = run_id or _latest(home)
    with ExitStack() as services:
        store = open_home_store(home, services)
        records = store.run_records(run_id)
        if not records:
            known = ", ".join(store.run_ids()) or "none"
            raise BurnishError(f"run {run_id!r} left no records in this store; runs here: {known}")
        scratch = Path(services.enter_context(tempfile.TemporaryDirectory(prefix="burnish-run-")))
        config = _config_of(home, run_id, records, store, scratch)
        yield collect_run(store, run_id, config, scratch / "files")


def _latest(home: Home) -> str:
    latest = home.run_dir("latest")
    if not latest.exists():
        raise BurnishError(f"no run in {str(home.root)!r} yet; give a run id, or another folder with --home")
    return latest.resolve().name


def open_home_store(home: Home, services: ExitStack) -> ArtifactStore:
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
