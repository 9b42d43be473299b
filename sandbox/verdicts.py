"""From a program and its tests to one verdict per test, decided where the program cannot reach.

Calls and standard output are compared here, in the host. Assertions run in a second sandbox that holds no foreign
code. A program that ends early, prints what it likes or bends Python's own functions gains nothing by it.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from sandbox.limits import Limits
from sandbox.process import SandboxUnavailable, Zygote
from sandbox.spec import Spec
from sandbox.trial import Trial


@dataclass(frozen=True)
class Result:
    """What running one program against its tests gave."""

    verdicts: tuple[str, ...]
    """`spec.size` of them, one per test: passed, wrong, compile_error, runtime_error, timeout, memory, output_limit,
    refused, or internal (our fault, says nothing about the program)."""
    details: tuple[str, ...]
    """One per verdict, a line on why; empty where the verdict says it all. May be the program's own words."""
    stdout: str
    """Head of the standard output of all tests together."""
    stderr: str
    seconds: float
    """Wall-clock time."""
    degraded: bool
    """A protection was missing and the run was told to go on."""


class Sandbox:
    """Runs programs one after the other. One per thread; close it, or use it as a context manager.

    `preload` names modules from outside Python's library, such as numpy, that programs find imported; `enclosure` is
    a second jail around all of it: bubblewrap, nsjail or none. Raises SandboxUnavailable on a machine without Landlock
    or seccomp, unless `allow_degraded`, and where a module or the enclosure's program is not installed.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        allow_degraded: bool = False,
        preload: Sequence[str] = (),
        enclosure: str = "none",
    ) -> None:
        self.limits = limits
        self._allow_degraded, self._preload, self._enclosure = allow_degraded, tuple(preload), enclosure
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._zygote = self._fresh_zygote()
        except SandboxUnavailable:
            os.close(self._interrupt)
            raise

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._zygote.close()
        if self._interrupt >= 0:
            os.close(self._interrupt)
            self._interrupt = -1

    def interrupt(self) -> None:
        """End what runs; until `rearm`, whatever else is started too. The one method for other threads to call."""
        os.eventfd_write(self._interrupt, 1)

    def rearm(self) -> None:
        """Take an interrupt back, so that programs run again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._interrupt)

    def run_tests(self, code: str, spec: Spec) -> Result:
        """Run `code` against every test of `spec`; the limits hold for all of them together."""
        if not self._zygote.alive:
            self._zygote.close()
            self._zygote = self._fresh_zygote()
        started = time.monotonic()
        trial = Trial(self._zygote, self.limits, code, spec)
        outcomes = trial.run()
        return Result(
            verdicts=tuple(outcome.verdict for outcome in outcomes),
            details=tuple(outcome.detail for outcome in outcomes),
            stdout=trial.head("out"),
            stderr=trial.head("err"),
            seconds=time.monotonic() - started,
            degraded=bool(self._zygote.missing),
        )

    def _fresh_zygote(self) -> Zygote:
        return Zygote(self._allow_degraded, self._interrupt, self._preload, self._enclosure)


def run_tests(code: str, spec: Spec, limits: Limits = Limits(), *, allow_degraded: bool = False) -> Result:  # noqa: B008
    """One run in a sandbox of its own; use `Sandbox` for many."""
    with Sandbox(limits, allow_degraded=allow_degraded) as sandbox:
        return sandbox.run_tests(code, spec)
