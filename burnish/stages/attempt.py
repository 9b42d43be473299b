"""What surrounds one attempt of a stage: its work folder, its outputs, and what stays of it when it fails.

Attempts are killed at any moment, and two of the same stage may run at once; both must leave nothing in the way.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.errors import BurnishError, StageError, StoreError
from burnish.store import ArtifactStore

_PREFIX = "burnish-stage-"
_ABANDONED_S = 60.0
_FULL = ("No space left on device", "Disk quota exceeded")


@contextlib.contextmanager
def work_folder(name: str) -> Iterator[Path]:
    """A folder for as long as the block runs. Those of attempts that were killed are removed first."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{name}-") as folder:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            yield Path(folder)
        finally:
            os.close(held)


@contextlib.contextmanager
def failure_recorded(store: ArtifactStore, record: StageRecord) -> Iterator[None]:
    """What goes wrong in the block stays in the run as `record` with an error, and goes on as what it was.

    A full disk becomes a StageError. The success of another pod that ran the same stage stays.
    """
    try:
        yield
    except Exception as error:
        known = error if isinstance(error, BurnishError) else _full_disk(error, record.title)
        line = str(known) if known else f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        try:
            if not store.get_result(record.key):
                store.put_run_record(record.model_copy(update={"error": line, "finished_at": time.time()}))
        except StoreError as lost:
            print(f"{record.title}: its record could not be written: {lost}", file=sys.stderr, flush=True)
        if known and known is not error:
            raise known from None
        raise


def write_manifests(manifests: Mapping[str, Manifest], outputs: Mapping[str, str]) -> None:
    """Write each manifest, whole or not at all, to its path. Raises StageError when the disk is full."""
    for name, path in outputs.items():
        target = Path(path)
        draft = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(manifests[name].to_json(), "utf-8")
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise _full_disk(error, f"output {name!r}") or error from None


def _full_disk(error: Exception, what: str) -> StageError | None:
    """Libraries say it in classes of their own, so the text decides."""
    if not any(text in str(error) for text in _FULL):
        return None
    path = getattr(error, "filename", None)
    folder = Path(os.fsdecode(path)).parent if path else Path(tempfile.gettempdir())
    return StageError(
        f"{what}: the disk of {folder} is full; free some space or set TMPDIR to a folder on a larger disk "
        "(in a pod: more ephemeral storage)"
    )


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            # One that is just being made is not held yet.
            if status.st_uid != os.getuid() or time.time() - status.st_ctime < _ABANDONED_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
