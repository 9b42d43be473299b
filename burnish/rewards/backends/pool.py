"""Sandboxes inside this process, one a worker thread: nothing to install or start, the default of `burnish run`."""

from collections.abc import Sequence

from burnish.contracts.errors import StageError
from burnish.rewards.backends.backend import Outbox
from sandbox.jobs import Job
from sandbox.process import SandboxUnavailable
from sandbox.verdicts import Result
from sandbox.worker_pool import WorkerPool


class PoolBackend:
    """Raises StageError on a machine that cannot confine programs, or lacks a module of `preload` or the enclosure."""

    def __init__(
        self, workers: int, allow_degraded: bool, preload: Sequence[str] = (), enclosure: str = "none"
    ) -> None:
        self.capacity = 2 * workers
        self._outbox = Outbox()
        try:
            self._pool = WorkerPool(
                workers,
                lambda run, outcome: self._outbox.put(run.job.job_id, outcome),
                allow_degraded,
                preload,
                enclosure,
            )
        except SandboxUnavailable as error:
            raise StageError(
                f"execute: {error}; run on a machine that has it, or set execute.allow_degraded=true to go on without"
            ) from None

    def submit(self, job: Job) -> None:
        self._pool.submit(job)

    def collect(self) -> list[tuple[str, Result]]:
        return self._outbox.collect()

    def close(self) -> None:
        self._pool.close()
