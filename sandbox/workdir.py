"""A work directory for one execution: made for it, looked at while it runs, removed with whatever it left there.

What a program makes in it is hostile: links are never followed, and depth, names and modes may be anything.
"""

import contextlib
import fcntl
import functools
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.removal import FOLDER, remove

_PREFIX = "sandbox-"
# Deeper trees are no program's honest need, and every level costs the reader a descriptor.
_DEPTH = 32
_ABANDONED_SECONDS = 60.0


class WorkDirectory:
    """A fresh directory below TMPDIR, readable and changeable by user `uid` alone (None: by us)."""

    def __init__(self, files: Mapping[str, str], uid: int | None = None) -> None:
        remove_abandoned()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._descriptor = os.open(self.path, FOLDER)
        # Held as long as this process lives: what nobody holds is abandoned.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name, text in files.items():
            file = Path(self.path, name)
            file.write_bytes(text.encode("utf-8", "replace"))
            if uid is not None:
                os.chown(file, uid, uid)
        if uid is not None:
            os.chown(self.path, uid, uid)

    def excess(self, most_bytes: int, most_files: int, deleted: int = 0) -> str | None:
        """What there is too much of, or None; `deleted` are bytes of files that no longer have a name."""
        files, size = 0, deleted
        try:
            for entry in _walk(self._descriptor, _DEPTH):
                files, size = files + 1, size + entry.st_blocks * 512
                if files > most_files:
                    return f"more than {most_files} files"
        except PermissionError:
            return "a folder that cannot be looked into"
        except RecursionError:
            return f"folders more than {_DEPTH} deep"
        return f"more than {most_bytes >> 20} MiB of files" if size > most_bytes else None

    def make_executable(self, name: str) -> None:
        """Set the mode of a regular file that a confined process made."""
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._descriptor)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove it. Nothing may be running in it any more."""
        remove(self.path)
        os.close(self._descriptor)


@functools.cache
def remove_abandoned() -> None:
    """Remove the work directories of processes that died before they could; once in a process's life."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            # One that is just being made is not held yet.
            if time.time() - folder.lstat().st_ctime < _ABANDONED_SECONDS:
                continue
            descriptor = os.open(folder, FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(str(folder))
            finally:
                os.close(descriptor)


def _walk(folder: int, depth: int) -> Iterator[os.stat_result]:
    """Everything below a folder that may change meanwhile. Raises RecursionError, PermissionError."""
    if depth == 0:
        raise RecursionError
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    inner = os.open(entry.name, FOLDER, dir_fd=folder)
                    try:
                        yield from _walk(inner, depth - 1)
                    finally:
                        os.close(inner)
