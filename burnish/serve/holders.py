"""Who uses the loaded policy: every stage or shard that draws from it, until it says goodbye or falls silent.

All shards of a round hold the same policy side by side; a policy is replaced only when nobody holds it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Holder:
    """One client that draws."""

    label: str
    """What people know it by, like `my-run: round 2 - rollout`."""
    since: float
    seen: float


class Holders:
    """Clients by id; one that was not heard of for `lease_s` is gone, so a killed pod blocks nobody for longer."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._by_id: dict[str, Holder] = {}

    def touch(self, holder_id: str, label: str = "") -> None:
        """It draws, or is about to."""
        now = self._clock()
        holder = self._by_id.setdefault(holder_id, Holder(label or holder_id, now, now))
        holder.seen = now

    def release(self, holder_id: str) -> None:
        self._by_id.pop(holder_id, None)

    def clear(self) -> None:
        self._by_id.clear()

    def present(self) -> list[Holder]:
        """Those of now, the longest first."""
        now = self._clock()
        self._by_id = {key: holder for key, holder in self._by_id.items() if now - holder.seen < self.lease_s}
        return sorted(self._by_id.values(), key=lambda holder: holder.since)

    def age(self, holder: Holder) -> float:
        """Seconds since it came."""
        return self._clock() - holder.since
