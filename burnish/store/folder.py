"""Objects as files in a folder, for one machine or a shared disk; a temporary file and a rename make a write whole."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from burnish.contracts.errors import StoreError
from burnish.store.backend import MissingObject, StoredObject

_PIECE = 1 << 20
_TEMPORARY = ".tmp-"


class FolderBackend:
    """Backend over the folder `root`, made when the first object is written."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = str(self.root)

    def put_bytes(self, key: str, data: bytes) -> None:
        with self._explained(key), whole_file(self.root / key) as temporary:
            temporary.write_bytes(data)

    def put_new(self, key: str, data: bytes) -> bool:
        with self._explained(key):
            try:
                with whole_file(self.root / key, replace=False) as temporary:
                    temporary.write_bytes(data)
            except FileExistsError:
                return (self.root / key).read_bytes() == data
        return True

    def put_file(self, key: str, path: Path) -> None:
        with self._explained(key), whole_file(self.root / key) as temporary:
            shutil.copyfile(path, temporary)

    def get_bytes(self, key: str) -> bytes:
        with self._explained(key):
            return (self.root / key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        with self._explained(key), open(self.root / key, "rb") as file:
            file.seek(start)
            while length:
                piece = file.read(min(length, _PIECE))
                if not piece:
                    raise StoreError(f"object store {self.url}, key {key}: the object is {length} bytes too short")
                length -= len(piece)
                yield piece

    def size(self, key: str) -> int | None:
        try:
            with self._explained(key):
                return (self.root / key).stat().st_size
        except MissingObject:
            return None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._walk(prefix, temporary=False)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._explained(key):
                (self.root / key).unlink(missing_ok=True)

    def unfinished(self) -> Iterator[StoredObject]:
        return self._walk("", temporary=True)

    def drop_unfinished(self, keys: Iterable[str]) -> None:
        self.delete(keys)

    def _walk(self, prefix: str, *, temporary: bool) -> Iterator[StoredObject]:
        for folder, _, names in os.walk(self.root / prefix):
            for name in sorted(names):
                path = Path(folder) / name
                if is_temporary(path) != temporary:
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted since the folder was read
                    stat = path.stat()
                    yield StoredObject(path.relative_to(self.root).as_posix(), stat.st_size, stat.st_mtime)

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise MissingObject(f"object store {self.url}: there is no object {key}") from None
        except OSError as error:
            raise StoreError(f"object store {self.url}, key {key}: {os_reason(error)}") from None


@contextlib.contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends well, and is gone otherwise.

    Without `replace`, FileExistsError when the name is taken by then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o444)
        if replace or not _linked(temporary, path):
            temporary.replace(path)
        else:
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _linked(temporary: Path, path: Path) -> bool:
    """Give it the name, which unlike a rename replaces nothing. False where there are no hard links."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP}:
            raise
        if path.exists():
            raise FileExistsError(path) from None
        return False
    return True


def is_temporary(path: Path) -> bool:
    """Whether `whole_file` made this name: a writer is busy with it, or died."""
    return path.name.startswith(_TEMPORARY)


def is_full(error: OSError) -> bool:
    """Whether there is no space left for a file."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def os_reason(error: OSError) -> str:
    """What went wrong with a file and what to do about it, without a traceback."""
    if is_full(error):
        return "the disk is full; free some space (burnish store gc) or use another disk"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "permission denied; check the owner of the folder"
    return error.strerror or str(error)
