"""Threads with a worker each: jobs go in, results come out as they are ready.

Python's threads are enough: while a program runs, its thread waits for the kernel.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from sandbox.jobs import Job
from sandbox.verdicts import Result
from sandbox.worker import Run, Worker


class WorkerPool:
    """`size` workers, whose programs find the modules `preload` imported. Raises SandboxUnavailable.

    `done(run, outcome)` is called in the worker's thread; an exception as outcome is a defect of the sandbox.
    """

    def __init__(
        self,
        size: int,
        done: Callable[[Run, Result | Exception], None],
        allow_degraded: bool = False,
        preload: Sequence[str] = (),
        enclosure: str = "none",
    ) -> None:
        self._workers = [Worker(allow_degraded, preload, enclosure) for _ in range(size)]
        self._workers[0].open()
        self._done = done
        self._inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in self._workers]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def restarts(self) -> int:
        return sum(worker.restarts for worker in self._workers)

    def submit(self, job: Job) -> Run:
        run = Run(job)
        self._inbox.put(run)
        return run

    def interrupt(self, run: Run) -> None:
        """End `run`, or see that it does not begin; its `done` is called all the same."""
        run.interrupted = True
        for worker in self._workers:
            worker.interrupt(run)

    def close(self) -> None:
        """End what runs, drop what waits, stop the threads."""
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()
        for _ in self._threads:
            self._inbox.put(None)
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join()

    def _work(self, worker: Worker) -> None:
        with worker:
            while (run := self._inbox.get()) is not None:
                try:
                    outcome: Result | Exception = worker.run(run)
                except Exception as error:
                    # Whatever state it left the sandbox in: the next job gets a new one.
                    worker.close()
                    outcome = error
                self._done(run, outcome)
