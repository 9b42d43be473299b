"""A backend that counts what is written through it and fails where a test tells it to."""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from burnish.store.backend import Backend, StoredObject


class WatchedBackend:
    """Hands everything on to `inner`; `before(operation, key)` may raise."""

    def __init__(self, inner: Backend, before: Callable[[str, str], None] = lambda operation, key: None) -> None:
        self.inner = inner
        self.url = inner.url
        self.before = before
        self.calls: list[tuple[str, str]] = []
        self.uploaded = 0
        self._lock = threading.Lock()

    def put_bytes(self, key: str, data: bytes) -> None:
        self._note("put_bytes", key)
        self.inner.put_bytes(key, data)

    def put_new(self, key: str, data: bytes) -> bool:
        self._note("put_new", key)
        return self.inner.put_new(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._note("put_file", key)
        self.inner.put_file(key, path)
        with self._lock:
            self.uploaded += path.stat().st_size

    def get_bytes(self, key: str) -> bytes:
        self._note("get_bytes", key)
        return self.inner.get_bytes(key)

    def get_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self._note("get_range", key)
        return self.inner.get_range(key, start, length)

    def size(self, key: str) -> int | None:
        self._note("size", key)
        return self.inner.size(key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._note("list", prefix)
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        keys = tuple(keys)
        for key in keys:
            self._note("delete", key)
        self.inner.delete(keys)

    def unfinished(self) -> Iterator[StoredObject]:
        return self.inner.unfinished()

    def drop_unfinished(self, keys: Iterable[str]) -> None:
        self.inner.drop_unfinished(keys)

    def count(self, operation: str) -> int:
        return sum(called == operation for called, _ in self.calls)

    def _note(self, operation: str, key: str) -> None:
        with self._lock:
            self.calls.append((operation, key))
        self.before(operation, key)


def files_under(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
