"""What every backend is, and the queue through which its results come back.

A backend is driven by one thread: `submit` up to `capacity` jobs, `collect` what is ready, and so on.
"""

from queue import SimpleQueue
from typing import Protocol

from sandbox.jobs import Job
from sandbox.verdicts import Result


class Backend(Protocol):
    """Somewhere that runs jobs, in no particular order."""

    capacity: int
    """Jobs in flight that keep it busy; it need not take more."""

    def submit(self, job: Job) -> None:
        """Hand over a job; its id is not among those in flight."""

    def collect(self) -> list[tuple[str, Result]]:
        """Ids and results that are ready; waits for one at least. Raises StageError when the backend is lost."""

    def close(self) -> None:
        """End what is in flight and leave nothing behind."""


class Outbox:
    """Results from threads to the one that collects."""

    def __init__(self) -> None:
        self._ready: SimpleQueue[tuple[str, Result | Exception]] = SimpleQueue()

    def put(self, job_id: str, outcome: Result | Exception) -> None:
        self._ready.put((job_id, outcome))

    def collect(self) -> list[tuple[str, Result]]:
        """As `Backend.collect`; an exception that was put is raised."""
        found = [self._checked(*self._ready.get())]
        while not self._ready.empty():
            found.append(self._checked(*self._ready.get()))
        return found

    @staticmethod
    def _checked(job_id: str, outcome: Result | Exception) -> tuple[str, Result]:
        if isinstance(outcome, Exception):
            raise outcome
        return job_id, outcome
