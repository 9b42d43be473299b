"""Shards: which of a round's groups each of several pods works on, and how a shard names itself.

A group's shard follows from the ids of the round's groups alone, never from the order of rows or from retries.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from burnish.contracts.errors import ContractError

SHARD = "shard"
"""Metadata of a shard's artifact: `2/3`."""
SHARD_OF = "shard_of"
"""Metadata of a shard's artifact: digest of all that the shards of one result have in common."""


@dataclass(frozen=True)
class Shard:
    """One of `count` parts; `index` counts from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """From `2/3`. Raises ContractError."""
        index, separator, count = text.partition("/")
        if separator and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
            return cls(int(index), int(count))
        raise ContractError(f"shard is {text!r}; it must be like 2/3")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, group_ids: Iterable[str]) -> set[str]:
        """Those of `group_ids` that are this shard's: in the order of their digests they are dealt out in turn.

        So shards differ by one group at most, and tasks that take turns in a round are in every shard.
        """
        dealt = sorted(set(group_ids), key=lambda group_id: hashlib.sha256(group_id.encode()).digest())
        return set(dealt[self.index - 1 :: self.count])


def all_shards(count: int) -> list[str]:
    """`1/3`, `2/3`, `3/3`."""
    return [str(Shard(index, count)) for index in range(1, count + 1)]
