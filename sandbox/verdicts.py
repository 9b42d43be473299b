"""From a program and its tests to one verdict per test, decided where the program cannot reach.

Calls and standard output are compared here, in the host. Assertions run in a second sandbox that holds no foreign
code. A program that ends early, prints what it likes or bends Python's own functions gains nothing by it.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from sandbox import values
from sandbox.limits import Limits
from sandbox.process import Child, SandboxUnavailable, Zygote, answer_limit
from sandbox.spec import AssertTest, CallTest, Spec, StdioTest

_HEAD = 2000
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12

_OUTPUT = "output_limit"


@dataclass(frozen=True)
class Result:
    """What running one program against its tests gave."""

    verdicts: tuple[str, ...]
    """One per test: passed, wrong, compile_error, runtime_error, timeout, memory, output_limit, refused, or internal
    (our fault, says nothing about the program)."""
    details: tuple[str, ...]
    """One per test, a line on why; empty where the verdict says it all. May be the program's own words."""
    stdout: str
    """Head of the standard output of all tests together."""
    stderr: str
    seconds: float
    """Wall-clock time."""
    degraded: bool
    """A protection was missing and the run was told to go on."""


class Sandbox:
    """Runs programs one after the other. One per thread; close it, or use it as a context manager.

    Raises SandboxUnavailable on a machine without Landlock or seccomp, unless `allow_degraded`.
    """

    def __init__(self, limits: Limits = Limits(), *, allow_degraded: bool = False) -> None:  # noqa: B008 - frozen
        self.limits = limits
        self._allow_degraded = allow_degraded
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._zygote = Zygote(allow_degraded, self._interrupt)
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
            self._zygote = Zygote(self._allow_degraded, self._interrupt)
        started = time.monotonic()
        run = _Run(self._zygote, self.limits, code, spec, started + self.limits.wall_s)
        if len(code.encode("utf-8", "replace")) > self.limits.code_kb * 1024:
            verdicts = ["refused"] * len(spec.tests)
        else:
            verdicts = run.all()
        return Result(
            verdicts=tuple(verdicts),
            details=("",) * len(verdicts),
            stdout=run.head("out"),
            stderr=run.head("err"),
            seconds=time.monotonic() - started,
            degraded=bool(self._zygote.missing),
        )


def run_tests(code: str, spec: Spec, limits: Limits = Limits(), *, allow_degraded: bool = False) -> Result:  # noqa: B008
    """One run in a sandbox of its own; use `Sandbox` for many."""
    with Sandbox(limits, allow_degraded=allow_degraded) as sandbox:
        return sandbox.run_tests(code, spec)


class _Run:
    def __init__(self, zygote: Zygote, limits: Limits, code: str, spec: Spec, deadline: float) -> None:
        self._zygote, self._limits, self._code, self._spec, self._deadline = zygote, limits, code, spec, deadline
        self._children: list[Child] = []

    def all(self) -> list[str]:
        calls = [test for test in self._spec.tests if isinstance(test, CallTest)]
        verdicts_of_calls = iter(self._calls(calls) if calls else [])
        verdicts = []
        for test in self._spec.tests:
            if isinstance(test, CallTest):
                verdicts.append(next(verdicts_of_calls))
            elif isinstance(test, StdioTest):
                verdicts.append(self._stdio(test))
            else:
                verdicts.append(self._asserted(test))
        return verdicts

    def head(self, stream: str) -> str:
        text = b"".join(child.captured[stream][:_HEAD] for child in self._children)
        return text.decode("utf-8", "replace")[:_HEAD]

    def _start(self, job: dict[str, Any], stdin: bytes = b"", peer: Child | None = None) -> Child:
        child = self._zygote.start(job, self._limits, stdin, peer)
        self._children.append(child)
        return child

    def _serve(self) -> Child:
        return self._start({"role": "serve", "code": self._code, "entry_point": self._spec.entry_point})

    def _calls(self, tests: Sequence[CallTest]) -> list[str]:
        """All calls in one process; once it is gone, what ended it is the verdict of the rest."""
        child = self._serve()
        confined, loaded = self._answer(child), self._answer(child)
        verdicts = []
        for test in tests:
            if loaded is None or "raised" in loaded:
                verdicts.append(_ended(child, confined is not None) if loaded is None else _raised(loaded))
                continue
            self._zygote.ask(child, values.encode({"args": test.args, "kwargs": test.kwargs}).encode())
            answer = self._answer(child)
            verdicts.append(_ended(child, True) if answer is None else _compared(answer, test.expected))
        self._finish(child)
        return [_OUTPUT] * len(tests) if child.cause == _OUTPUT else verdicts

    def _stdio(self, test: StdioTest) -> str:
        child = self._start({"role": "program", "code": self._code}, test.stdin.encode("utf-8", "replace"))
        confined, said = self._answer(child), self._answer(child)
        self._finish(child)
        if child.cause is not None or child.status != 0:
            return "memory" if said and said.get("raised") == "MemoryError" else _ended(child, confined is not None)
        written = child.captured["out"].decode("utf-8", "replace")
        return "passed" if _lines(written) == _lines(test.stdout) else "wrong"

    def _asserted(self, test: AssertTest) -> str:
        program = self._serve()
        self._zygote.flush(program, self._deadline)
        if program.over:
            return _ended(program, False)
        checker = self._start(
            {
                "role": "check",
                "source": test.source,
                "context": self._spec.context,
                "entry_point": self._spec.entry_point,
                "answer_limit": answer_limit(self._limits),
            },
            peer=program,
        )
        confined, said = self._answer(checker), self._answer(checker)
        self._finish(checker)
        self._finish(program)
        # An answer may overtake the kill for too much output; only at the end is all of it counted.
        if _OUTPUT in (program.cause, checker.cause):
            return _OUTPUT
        # Said by the one process that holds no foreign code.
        outcome = said.get("outcome") if said else None
        if outcome == "ended" or outcome is None:
            return _ended(program if program.cause or outcome else checker, confined is not None)
        return str(outcome)

    def _answer(self, child: Child) -> dict[str, Any] | None:
        """The next thing it says; None when it ended. Anything unreadable reads as an unknown exception."""
        line = self._zygote.read_line(child, self._deadline)
        if line is None:
            return None
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        return answer if isinstance(answer, dict) else {"raised": "unreadable answer"}

    def _finish(self, child: Child) -> None:
        self._zygote.end(child, self._deadline)


def _ended(child: Child, confined: bool) -> str:
    """The verdict on a process that is gone without an answer."""
    if child.cause is not None:
        return child.cause
    if not confined:
        return "internal"
    # Killed, and not by us: the kernel, out of memory.
    return "memory" if child.status == -9 else "runtime_error"


def _raised(answer: dict[str, Any]) -> str:
    return "memory" if answer.get("raised") == "MemoryError" else "runtime_error"


def _compared(answer: dict[str, Any], expected: Any) -> str:
    if "value" not in answer:
        # What cannot be sent cannot be equal to what is expected.
        return "wrong" if answer.get("raised") == "UnsupportedValue" else _raised(answer)
    try:
        return "passed" if _equal(values.decode(answer["value"]), expected) else "wrong"
    except (ValueError, TypeError, RecursionError, OverflowError):
        return "wrong"


def _equal(got: Any, expected: Any) -> bool:
    """Python's equality on plain values; JSON knows no tuples, so they equal lists, and floats may be a hair off."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(_equal, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_equal(got[key], expected[key]) for key in got)
    if isinstance(got, bool) != isinstance(expected, bool):
        return False
    if isinstance(got, float) or isinstance(expected, float):
        numbers = isinstance(got, int | float) and isinstance(expected, int | float)
        return numbers and (got == expected or math.isclose(got, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE))
    return bool(got == expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
