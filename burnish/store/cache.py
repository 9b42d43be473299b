"""The node's cache of blobs: one read-only file per digest, shared by every stage and run on the machine.

A file gets its name only when its bytes have the digest, and carries a fixed modification time: whoever writes to
it afterwards changes the time, and it is fetched again.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from burnish.contracts.artifacts import Blob
from burnish.contracts.errors import StoreError
from burnish.store.backend import Backend, CorruptObject
from burnish.store.folder import is_full, is_temporary, os_reason, whole_file

CHUNK = 16 << 20
_IDLE_S = 3600.0
_SEALED_NS = 1_000_000_000 * 10**9  # September 2001: no file written today has it by chance


class CacheFull(StoreError):
    """The disk of the cache is; the store and the stage can do without it."""


class BlobCache:
    """Verified blobs in the folder `root`, of which `trim` leaves about `limit` bytes."""

    def __init__(self, root: Path, limit: float = float("inf")) -> None:
        self.root = root.absolute()
        self.limit = limit

    def path(self, sha256: str) -> Path:
        return self.root / sha256

    def holds(self, blob: Blob) -> bool:
        """Whether the blob lies here, untouched since it was verified."""
        with self._explained():
            try:
                stat = self.path(blob.sha256).stat()
            except FileNotFoundError:
                return False
        return stat.st_size == blob.size and stat.st_mtime_ns == _SEALED_NS

    def adopt(self, blob: Blob, file: Path) -> None:
        """Keep `file`, whose digest is known, without copying it where the file system allows: it becomes read-only."""
        if self.holds(blob):
            return
        with self._explained(), whole_file(self.path(blob.sha256)) as temporary:
            temporary.unlink()
            _link_or(shutil.copyfile, file.resolve(), temporary)
            _seal(temporary)

    def download(self, blob: Blob, backend: Backend, key: str, pool: ThreadPoolExecutor) -> None:
        """Fetch the blob in parallel ranges. Raises CorruptObject, MissingObject, CacheFull, StoreError."""
        with self._explained(), whole_file(self.path(blob.sha256)) as temporary:
            receive(blob, backend, key, pool, temporary)
            _seal(temporary)

    def materialise(self, blob: Blob, target: Path) -> bool:
        """Put the cached blob at `target`, as a hard link, or as a symbolic one across file systems.

        False when the blob is not here, or no longer.
        """
        if not self.holds(blob):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _link_or(_symlink, self.path(blob.sha256), target)
        except FileNotFoundError:
            return False
        return True

    def trim(self, limit: float | None = None) -> int:
        """Remove the blobs that nobody has asked for longest, until the rest fits; none that is in use.

        A link to a file changes its ctime, so that is the time of its last use. Returns the bytes that went.
        """
        now = time.time()
        entries = []
        for path in self.root.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                entries.append((path, path.stat()))
        excess = sum(stat.st_size for _, stat in entries) - (self.limit if limit is None else limit)
        freed = 0
        for path, stat in sorted(entries, key=lambda entry: entry[1].st_ctime):
            # One more link is a stage that has it open as an input; the hour is for symbolic links and half a fetch.
            idle = stat.st_nlink == 1 and now - stat.st_ctime > _IDLE_S
            if idle and (excess > 0 or is_temporary(path)):
                path.unlink(missing_ok=True)
                excess -= stat.st_size
                freed += stat.st_size
        return freed

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = CacheFull if is_full(error) else StoreError
            raise kind(f"cache folder {self.root}: {os_reason(error)} (set BURNISH_CACHE to move it)") from None


def receive(blob: Blob, backend: Backend, key: str, pool: ThreadPoolExecutor, path: Path) -> None:
    """Fetch the blob in parallel ranges into the empty file `path`. Raises OSError, CorruptObject, MissingObject."""
    starts = range(0, blob.size, CHUNK)
    with open(path, "r+b") as file:

        def copy(start: int) -> None:
            at = start
            for piece in backend.get_range(key, start, min(CHUNK, blob.size - start)):
                end = at + len(piece)
                while at < end:  # a disk that is nearly full takes less than it was given
                    at += os.pwrite(file.fileno(), piece[at - end :], at)

        digest = hashlib.sha256()
        copies = [pool.submit(copy, start) for start in starts]
        try:
            # Hash a range as soon as it and all before it are there, while later ones still arrive.
            for start, done in zip(starts, copies, strict=True):
                done.result()
                digest.update(os.pread(file.fileno(), CHUNK, start))
        finally:
            for pending in copies:
                pending.cancel()
            for pending in copies:
                with contextlib.suppress(BaseException):
                    pending.exception()
    if digest.hexdigest() != blob.sha256:
        raise CorruptObject(f"{key} holds bytes with sha256 {digest.hexdigest()}")


def _seal(path: Path) -> None:
    path.chmod(0o444)
    os.utime(path, ns=(_SEALED_NS, _SEALED_NS))


def _symlink(source: Path, target: Path) -> None:
    os.symlink(source, target)
    # Unlike a hard link this leaves no trace of the use; on a cache of another user's that is how it is.
    with contextlib.suppress(PermissionError):
        _seal(source)


def _link_or(fallback: Callable[[Path, Path], object], source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        # Another file system, one without hard links, or fs.protected_hardlinks.
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
            raise
        fallback(source, target)
