"""A worker: one sandbox that is replaced when it dies, so that a fault of ours costs a retry and never a verdict.

Used by the service, by the pool inside `burnish run` and by `run-job`.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from sandbox import languages
from sandbox.jobs import Job, internal_result
from sandbox.process import SandboxUnavailable
from sandbox.spec import parse_spec
from sandbox.verdicts import Result, Sandbox

_ATTEMPTS = 2


@dataclass(eq=False)
class Run:
    """One time that a job is run."""

    job: Job
    interrupted: bool = False


class Worker:
    """Runs jobs one after the other, in a sandbox that is opened for the first of them, if not before."""

    def __init__(self, allow_degraded: bool = False, preload: Sequence[str] = (), enclosure: str = "none") -> None:
        self._allow_degraded, self._preload, self._enclosure = allow_degraded, preload, enclosure
        self._sandbox: Sandbox | None = None
        self._running: Run | None = None
        self._stopped = False
        self._lock = threading.Lock()  # of the three above
        self.restarts = 0
        """Times the sandbox was replaced."""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(self) -> Sandbox:
        """Open the sandbox. Raises SandboxUnavailable on a machine that cannot confine programs."""
        if self._sandbox is None:
            sandbox = Sandbox(allow_degraded=self._allow_degraded, preload=self._preload, enclosure=self._enclosure)
            with self._lock:
                self._sandbox = sandbox
        return self._sandbox

    def run(self, run: Run) -> Result:
        """The result; after two faults of our own, or an interrupt, `internal` for every test."""
        spec = parse_spec(run.job.spec)
        lacking = languages.missing(spec.language)
        if lacking:  # which another attempt would not change
            return internal_result(run.job, lacking)
        why = "interrupted"
        for _ in range(_ATTEMPTS):
            try:
                sandbox = self.open()
                sandbox.limits = run.job.limits
                with self._lock:
                    sandbox.rearm()
                    self._running = run
                    if run.interrupted or self._stopped:
                        break
                result = sandbox.run_tests(run.job.code, spec)
            except (SandboxUnavailable, OSError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if run.interrupted or self._stopped:
                    break
                if "internal" not in result.verdicts:
                    return result
                why = max(result.details, key=len) or "the sandbox ended before the program did"
            finally:
                with self._lock:
                    self._running = None
            self.close()
            self.restarts += 1
        return internal_result(run.job, why)

    def interrupt(self, run: Run) -> None:
        """End `run` if it is what runs. Like `stop`, for other threads to call."""
        with self._lock:
            if self._running is run and self._sandbox is not None:
                self._sandbox.interrupt()

    def stop(self) -> None:
        """End what runs, and run nothing more."""
        with self._lock:
            self._stopped = True
            if self._running is not None and self._sandbox is not None:
                self._sandbox.interrupt()

    def close(self) -> None:
        """Close the sandbox; the next run opens another."""
        with self._lock:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()
