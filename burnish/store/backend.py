"""The one interface between artifacts and bytes: keys with `/`, whole objects, ranges, listing.

Objects are written whole or not at all, whatever dies in between; both implementations promise that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.contracts.errors import StoreError


class MissingObject(StoreError):
    """There is no object under this key."""


class CorruptObject(StoreError):
    """The bytes under a digest have another digest."""


@dataclass(frozen=True)
class StoredObject:
    """One line of a listing."""

    key: str
    size: int
    """Bytes."""
    modified: float
    """Unix time."""


class Backend(Protocol):
    """Where the bytes are. Every method raises StoreError with one line that says what to check."""

    url: str
    """What people typed to get here, without credentials."""

    def put_bytes(self, key: str, data: bytes) -> None:
        """Write a small object, replacing what is there."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one; whether it is this one that is there now.

        Of several writers at the same moment one succeeds. What they write must differ, or all of them do.
        """

    def put_file(self, key: str, path: Path) -> None:
        """Write the file's bytes as an object, replacing what is there."""

    def get_bytes(self, key: str) -> bytes:
        """The whole object. Raises MissingObject."""

    def get_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        """Pieces that add up to exactly `length` bytes from `start`. Raises MissingObject."""

    def size(self, key: str) -> int | None:
        """Bytes of the object, None when there is none."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose key starts with `prefix`, which ends in `/` or is empty."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove the objects; one that is not there is no error."""

    def unfinished(self) -> Iterator[StoredObject]:
        """What writers have begun and not finished: they are busy, or died. No other method sees it."""

    def drop_unfinished(self, keys: Iterable[str]) -> None:
        """Remove it, by the keys that `unfinished` gave."""
