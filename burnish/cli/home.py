"""The folder of local runs, `.burnish/` by default: object store, MLflow database, one folder a run."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from burnish.contracts.artifacts import canonical_json
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError


@dataclass(frozen=True)
class Home:
    """Paths inside the folder; nothing is created until it is used."""

    root: Path

    @classmethod
    def default(cls, given: str | None = None) -> "Home":
        return cls(Path(given or os.environ.get("BURNISH_HOME") or ".burnish").absolute())

    def run_dir(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time: its services and its store belong to it. Raises BurnishError when taken."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = (self.root / "lock").open("a+")
        except OSError as error:
            raise BurnishError(f"home folder {str(self.root)!r} cannot be used: {error.strerror}") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise BurnishError(
                    f"home folder {str(self.root)!r} is in use by process {handle.read().strip() or 'unknown'}; "
                    "wait for it, or give another folder with --home"
                ) from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield


def run_id_of(config: RunConfig) -> str:
    """Name and digest of the configuration: the same configuration continues its run, a changed one is a new run.

    Prices and budget change no result, so a run that its budget ended goes on with a larger one.
    """
    digest = hashlib.sha256(canonical_json(config.model_dump(mode="json", exclude={"cost"})).encode()).hexdigest()
    return f"{config.name}-{digest[:8]}"
