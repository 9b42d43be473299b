"""What an answer or an end says about a program: a verdict, and a line on why.

The line may be the program's own words; the verdict never rests on words that could turn a failure into a pass.
"""

import math
import re
import signal
from typing import Any, NamedTuple

from sandbox import values
from sandbox.child import Child
from sandbox.compare import equal_values

_DETAIL = 300
# A program that fails with this share of its memory in use has failed for want of it.
_NEARLY_ALL = 0.9
# An exception as Node reports it, with the frame it came from.
_EXCEPTION = re.compile(r"^\w*(Error|Exception)\b.*(\n\s+at .*)?", re.MULTILINE)


class Outcome(NamedTuple):
    """Of one test."""

    verdict: str
    detail: str = ""


def ended(child: Child, out_of_memory: str = "out of memory") -> Outcome:
    """Of a confined process that is gone without an answer; `out_of_memory` is what its runtime says then."""
    if child.cause is not None:
        return Outcome(child.cause, child.detail)
    assert child.exit is not None
    status, limits = child.exit.status, child.limits
    if status == -signal.SIGXCPU or (status == -signal.SIGKILL and child.exit.cpu_s >= math.ceil(limits.wall_s)):
        return Outcome("timeout", f"{child.exit.cpu_s:.1f} s of processor time")
    if status == -signal.SIGKILL:
        return Outcome("memory", "ended by the kernel")
    if status == -signal.SIGXFSZ:
        return Outcome("output_limit", f"a file of more than {limits.disk_mb} MiB")
    errors = child.captured["err"].decode("utf-8", "replace")
    if child.directory is not None:
        errors = errors.replace(f"{child.directory.path}/", "")
    if child.exit.peak_mb >= _NEARLY_ALL * limits.memory_mb or (status != 0 and out_of_memory in errors):
        return Outcome("memory", f"more than {limits.memory_mb} MiB")
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    thrown = _EXCEPTION.search(errors)
    if thrown:
        return Outcome("runtime_error", cut(thrown.group()))
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    return Outcome("runtime_error", cut(f"{how}: {last}" if last else how))


def not_loaded(
    child: Child, confined: dict[str, Any] | None, compiled: dict[str, Any] | None, out_of_memory: str = "out of memory"
) -> Outcome:
    """Of a process that is gone before it was ready; it said `confined` and `compiled` before anything foreign ran."""
    if child.cause is not None:
        return Outcome(child.cause, child.detail)
    if confined is None:
        return Outcome("internal", "the process ended before it was confined")
    if compiled is None:
        return Outcome("compile_error", "the compiler did not survive it")
    if "compile_error" in compiled:
        return Outcome("compile_error", cut(str(compiled["compile_error"])))
    return ended(child, out_of_memory)


def not_started(answer: dict[str, Any]) -> Outcome:
    """Of a process that could not become the program."""
    return Outcome("internal", cut(f"could not start {answer.get('failed')}"))


def raised(answer: dict[str, Any]) -> Outcome:
    """Of an exception, as the program describes it."""
    if answer.get("raised") == "MemoryError":
        return Outcome("memory", "MemoryError")
    message, at = str(answer.get("message", "")), str(answer.get("at", ""))
    detail = f"{answer.get('raised')}: {message}" if message else str(answer.get("raised"))
    return Outcome("runtime_error", cut(f"{detail} at {at}" if at else detail))


def compared(answer: dict[str, Any], expected: Any) -> Outcome:
    """Of what a function returned."""
    if "value" not in answer:
        # What cannot be sent cannot be equal to what is expected.
        outcome = raised(answer)
        return Outcome("wrong", outcome.detail) if answer.get("raised") == "UnsupportedValue" else outcome
    try:
        got = values.decode(answer["value"])
        if equal_values(got, expected):
            return Outcome("passed")
        return Outcome("wrong", cut(f"returned {str(answer['value'])[:_DETAIL]}"))
    except (ValueError, TypeError, RecursionError, OverflowError):
        return Outcome("wrong", "returned what cannot be read")


def cut(text: str) -> str:
    """A detail of one line and bounded length, that any file can hold: half of a surrogate pair cannot be written."""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_DETAIL]
