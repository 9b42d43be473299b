"""The service behind the HTTP routes: a table of jobs, a pool of workers, and the loop that moves jobs between them.

Everything here belongs to one event loop; the pool's threads only hand results back to it.
"""

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandbox.job_table import Bounds, Entry, JobTable, TableFull
from sandbox.jobs import Job, internal_result, result_to_json
from sandbox.limits import Limits
from sandbox.metrics import Metrics
from sandbox.verdicts import Result
from sandbox.worker import Run
from sandbox.worker_pool import WorkerPool

Log = Callable[..., None]
"""`log(event, **fields)`; never given code, tests, output or details."""

_SLICE_S = 0.25  # how long a hung-up client goes unnoticed
_COLLECT_S = 5.0  # after a drain, for results to be fetched


@dataclass(frozen=True)
class Settings:
    """How the service is run."""

    workers: int = 2
    most: Limits = field(
        default_factory=lambda: Limits(
            wall_s=60.0, memory_mb=2048, output_kb=1024, code_kb=1024, disk_mb=256, files=4096, processes=256
        )
    )
    """No job's limits are above these."""
    bounds: Bounds = field(default_factory=Bounds)
    drain_s: float = 60.0
    """How long running jobs may take to end once the service is told to stop."""
    allow_degraded: bool = False
    preload: tuple[str, ...] = ()
    """Modules from outside Python's library that programs find imported."""
    enclosure: str = "none"
    """A second jail around each worker's programs: bubblewrap, nsjail or none."""
    token: str | None = None
    """What a client must present; None: nothing."""


class Draining(Exception):
    """The service is about to stop and takes no jobs."""


class Service:
    """Raises SandboxUnavailable on a machine that cannot confine programs."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self.settings, self.log = settings, log
        self.table = JobTable(settings.bounds)
        self.metrics = Metrics()
        self.draining = False
        self._loop = asyncio.get_running_loop()
        self.pool = WorkerPool(
            settings.workers, self._hand_back, settings.allow_degraded, settings.preload, settings.enclosure
        )
        self._runs: dict[Run, Entry] = {}
        self._idle = asyncio.Event()
        self._janitor = self._loop.create_task(self._expire_forever())

    @property
    def running(self) -> int:
        return len(self._runs)

    def submit(self, job: Job) -> Entry:
        """Queue a job, or find it when it is known. Raises Draining, TableFull, JobConflict."""
        if self.draining and job.job_id not in self.table.entries:
            self.metrics.rejected["draining"] += 1
            raise Draining("the service is shutting down; submit again to its successor")
        try:
            entry = self.table.submit(job, time.monotonic())
        except TableFull as full:
            self.metrics.rejected[full.reason] += 1
            raise
        self._dispatch()
        return entry

    def forget(self, job_id: str) -> Entry | None:
        """Drop a job with its result; a queued one is not run, a running one is ended."""
        entry = self.table.remove(job_id)
        if entry is not None and entry.state != "finished":
            self._end(entry, "cancelled")
        return entry

    async def wait(self, entries: list[Entry], seconds: float, gone: Callable[[], bool], least: int = 1) -> None:
        """Until `least` of `entries` are finished or forgotten, the time is up, or the client has hung up."""
        until = time.monotonic() + seconds
        news = asyncio.Event()
        for entry in entries:
            entry.waiters.add(news.set)
        try:
            while (left := until - time.monotonic()) > 0 and not gone():
                if sum(map(self.over, entries)) >= (1 if self.draining else least):
                    return
                for entry in entries:
                    entry.touched = time.monotonic()
                news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _SLICE_S)):
                        await news.wait()
        finally:
            for entry in entries:
                entry.waiters.discard(news.set)

    def retry_after(self) -> float:
        """Seconds until there is likely room again."""
        done = self.metrics.execution
        mean = done.total / done.count if done.count else 0.1
        return min(30.0, max(1.0, self.table.queued * mean / self.settings.workers / 2))

    async def drain(self) -> None:
        """Take no more jobs, let those that run end, leave their results to be fetched for a moment, stop."""
        self.draining = True
        for entry in self.table.drop_queued():
            self._end(entry, "dropped")
        self.log("draining", running=self.running)
        try:
            async with asyncio.timeout(self.settings.drain_s):
                while self._runs:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self.log("interrupting", running=self.running)
        until = time.monotonic() + _COLLECT_S
        while time.monotonic() < until and any(map(_to_fetch, self.table.entries.values())):
            await asyncio.sleep(0.05)
        await self.close()

    async def close(self) -> None:
        self._janitor.cancel()
        await asyncio.to_thread(self.pool.close)

    def over(self, entry: Entry) -> bool:
        """Whether it is finished or forgotten."""
        return entry.state == "finished" or self.table.entries.get(entry.job_id) is not entry

    def _dispatch(self) -> None:
        while not self.draining and len(self._runs) < self.pool.size:
            entry = self.table.start_next(time.monotonic())
            if entry is None:
                return
            self.metrics.waiting.observe(entry.started - entry.submitted)
            self._runs[self.pool.submit(Job.from_json(entry.content))] = entry

    def _end(self, entry: Entry, outcome: str) -> None:
        """The table has let go of it before it was finished."""
        self.metrics.jobs[outcome] += 1
        self.log(f"job {outcome}", job_id=entry.job_id, owner=entry.owner, state=entry.state)
        for run in [run for run, running in self._runs.items() if running is entry]:
            self.pool.interrupt(run)

    def _hand_back(self, run: Run, outcome: Result | Exception) -> None:
        """In a worker's thread."""
        self._loop.call_soon_threadsafe(self._finished, run, outcome)

    def _finished(self, run: Run, outcome: Result | Exception) -> None:
        entry = self._runs.pop(run)
        if isinstance(outcome, Exception):
            where = traceback.extract_tb(outcome.__traceback__)[-1]
            place = f"{where.filename}:{where.lineno}"
            self.log("fault", level="error", job_id=entry.job_id, error=type(outcome).__name__, place=place)
            outcome = internal_result(run.job, f"a fault of the sandbox ({type(outcome).__name__})")
        if not run.interrupted:
            self._record(entry, outcome)
        if not self._runs:
            self._idle.set()
        self._dispatch()

    def _record(self, entry: Entry, result: Result) -> None:
        self.metrics.jobs["finished"] += 1
        self.metrics.verdicts.update(result.verdicts)
        self.metrics.execution.observe(result.seconds)
        self.table.finish(entry, result_to_json(result), time.monotonic())
        counts: dict[str, Any] = dict(Counter(result.verdicts))
        self.log("job finished", job_id=entry.job_id, owner=entry.owner, seconds=round(result.seconds, 4), **counts)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self.settings.bounds.ttl_s / 4))
            for entry in self.table.expire(time.monotonic()):
                if entry.state != "finished":
                    self._end(entry, "expired")


def _to_fetch(entry: Entry) -> bool:
    return entry.state == "finished" and not entry.delivered
