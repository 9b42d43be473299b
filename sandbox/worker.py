"""A worker: one sandbox that is replaced when it dies, so that a fault of ours costs a retry and never a verdict.

Used by the service, by the pool inside `burnish run` and by `run-job`; `interrupt` alone may be called from another
thread.
"""

import threading
from types import TracebackType

from sandbox.jobs import Job, internal_result
from sandbox.process import SandboxUnavailable
from sandbox.spec import parse_spec
from sandbox.verdicts import Result, Sandbox

_ATTEMPTS = 2


class Worker:
    """Runs jobs one after the other. Raises SandboxUnavailable on a machine that cannot confine programs."""

    def __init__(self, allow_degraded: bool = False) -> None:
        self._allow_degraded = allow_degraded
        self._sandbox: Sandbox | None = Sandbox(allow_degraded=allow_degraded)
        self._lock = threading.Lock()
        self._running: Job | None = None
        self._interrupted = False
        self.restarts = 0
        """Times the sandbox was replaced."""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(self, job: Job) -> Result:
        """The result of `job`; after two faults of our own, or an interrupt, `internal` for every test."""
        spec = parse_spec(job.spec)
        with self._lock:
            self._running, self._interrupted = job, False
            if self._sandbox is not None:
                self._sandbox.rearm()
        why = ""
        try:
            for _ in range(_ATTEMPTS):
                if self._interrupted:
                    why = "interrupted"
                    break
                try:
                    sandbox = self._open()
                    sandbox.limits = job.limits
                    result = sandbox.run_tests(job.code, spec)
                except (SandboxUnavailable, OSError) as error:
                    why = f"{type(error).__name__}: {error}"
                else:
                    if "internal" not in result.verdicts:
                        return result
                    why = "the sandbox ended before the program did"
                if not self._interrupted:
                    self.close()
                    self.restarts += 1
        finally:
            with self._lock:
                self._running = None
        return internal_result(job, why)

    def interrupt(self, job: Job) -> None:
        """End `job` if it is what runs."""
        with self._lock:
            if self._running is job:
                self._interrupted = True
                if self._sandbox is not None:
                    self._sandbox.interrupt()

    def close(self) -> None:
        with self._lock:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            sandbox = Sandbox(allow_degraded=self._allow_degraded)
            with self._lock:
                self._sandbox = sandbox
                if self._interrupted:
                    sandbox.interrupt()
        return self._sandbox
