"""Which jobs there are and what has become of them: a bounded queue that is fair between owners, and results on hold.

No thread, no clock of its own and no I/O: the service's event loop owns the table and tells it the time.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.jobs import Job

State = Literal["queued", "running", "finished"]

# What an entry costs beside its program, tests and result: keys, times, the objects around them.
_OVERHEAD = 1024


class TableFull(Exception):
    """No room for the job now; `reason` is queue, owner or memory."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class JobConflict(Exception):
    """Another job already has this id."""


@dataclass
class Entry:
    """One job from its submission until it is forgotten."""

    job_id: str
    owner: str
    digest: bytes
    content: bytes
    """The job as JSON, which is many times smaller than as objects; empty once it is finished."""
    size: int
    """Bytes it takes of the table's memory."""
    submitted: float
    touched: float
    """When its owner last asked."""
    state: State = "queued"
    started: float = 0.0
    finished: float = 0.0
    result: dict[str, Any] | None = None
    delivered: bool = False
    """Its owner has been given the result."""
    waiters: set[Callable[[], None]] = field(default_factory=set)
    """Called when it is finished or gone."""

    def wake(self) -> None:
        for waiter in list(self.waiters):
            waiter()


@dataclass(frozen=True)
class Bounds:
    """What the table may hold."""

    queue: int = 2000
    """Jobs waiting for a worker."""
    queue_per_owner: int = 1000
    """Jobs of one owner waiting for a worker."""
    memory_mb: int = 128
    """Programs, tests and results together."""
    ttl_s: float = 600.0
    """How long a result waits to be asked for, and a job for its owner to ask again."""


class JobTable:
    """All jobs the service knows."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.entries: dict[str, Entry] = {}
        self.memory = 0
        self.queued = 0
        # In the order in which owners take turns; an owner without a queue is not in it.
        self._queues: dict[str, deque[Entry]] = {}

    def submit(self, job: Job, now: float) -> Entry:
        """Queue `job`, or find it when it is known. Raises TableFull, JobConflict."""
        content = job.to_json()
        digest = hashlib.sha256(content).digest()
        known = self.entries.get(job.job_id)
        if known is not None:
            if known.digest != digest:
                raise JobConflict(f"job {job.job_id} exists with other content; give this one another id")
            known.touched = now
            return known
        cost = len(content) + _OVERHEAD
        mine = len(self._queues.get(job.owner, ()))
        if self.queued >= self.bounds.queue:
            raise TableFull("queue", f"the queue is full ({self.bounds.queue} jobs)")
        if mine >= self.bounds.queue_per_owner:
            raise TableFull("owner", f"{job.owner} has {self.bounds.queue_per_owner} jobs queued, which is the limit")
        if self.memory + cost > self.bounds.memory_mb * 2**20:
            raise TableFull("memory", f"jobs and results take {self.bounds.memory_mb} MB, which is the limit")
        entry = Entry(job.job_id, job.owner, digest, content, cost, submitted=now, touched=now)
        self.entries[job.job_id] = entry
        self._queues.setdefault(job.owner, deque()).append(entry)
        self.queued += 1
        self.memory += cost
        return entry

    def start_next(self, now: float) -> Entry | None:
        """The job to run next, each owner in turn; it counts as running from here on."""
        if not self._queues:
            return None
        owner, queue = next(iter(self._queues.items()))
        del self._queues[owner]
        entry = queue.popleft()
        if queue:
            self._queues[owner] = queue  # behind the others
        self.queued -= 1
        entry.state, entry.started = "running", now
        return entry

    def finish(self, entry: Entry, result: dict[str, Any], now: float) -> None:
        """Keep the result, unless the job was given up in the meantime."""
        if self.entries.get(entry.job_id) is not entry:
            return
        entry.state, entry.finished, entry.result, entry.content = "finished", now, result, b""
        size = len(json.dumps(result)) + _OVERHEAD
        self.memory += size - entry.size
        entry.size = size
        entry.wake()

    def remove(self, job_id: str) -> Entry | None:
        """Forget the job. The caller ends it when it is running."""
        entry = self.entries.pop(job_id, None)
        if entry is None:
            return None
        self.memory -= entry.size
        if entry.state == "queued":
            queue = self._queues[entry.owner]
            queue.remove(entry)
            self.queued -= 1
            if not queue:
                del self._queues[entry.owner]
        entry.wake()
        return entry

    def expire(self, now: float) -> list[Entry]:
        """Forget what nobody has asked for within the TTL; returns it. The caller ends what was running."""
        oldest = now - self.bounds.ttl_s
        late = [entry for entry in self.entries.values() if max(entry.touched, entry.finished) < oldest]
        return self._remove_all(late)

    def drop_queued(self) -> list[Entry]:
        """Forget what no worker has begun; returns it."""
        return self._remove_all([entry for entry in self.entries.values() if entry.state == "queued"])

    def _remove_all(self, entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if self.remove(entry.job_id)]
