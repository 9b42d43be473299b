"""The code around foreign code, inside the sandbox: load a program and answer calls, run it, or check another one.

What the first two say is never believed, only compared. The third runs no foreign code: its program is across
a pipe, in a sandbox of its own.
"""

import builtins
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from sandbox import values

# Descriptors of every sandboxed process; the last two only where a program is checked across a pipe.
QUESTIONS, ANSWERS, PEER_QUESTIONS, PEER_ANSWERS = 3, 4, 5, 6
_MESSAGE_LIMIT = 500


class _CandidateEnded(BaseException):
    """The program's process is gone; a test's own `except Exception` must not hide that."""


def run(confine: Callable[[], None]) -> None:
    """Read the job, confine this process, do the job. Returns only when it ends normally."""
    questions = open(QUESTIONS, "rb")  # noqa: SIM115 - stays open as long as the process
    job = json.loads(questions.readline())
    confine()
    _say({"confined": True})
    roles: dict[str, Callable[[], None]] = {
        "serve": lambda: _serve(job, questions),
        "program": lambda: _program(job),
        "check": lambda: _check(job),
    }
    roles[job["role"]]()


def _serve(job: dict[str, Any], questions: io.BufferedReader) -> None:
    """Load the program, then answer one call a line."""
    namespace: dict[str, Any] = {"__name__": "solution"}
    _say(_attempt(lambda: exec(_compiled(job["code"], "solution.py"), namespace)))
    function = namespace.get(job["entry_point"])
    for line in questions:
        call = values.decode(line)
        _say(_attempt(lambda call=call: function(*call["args"], **call["kwargs"])))  # type: ignore[misc]
        _flush()
    _flush()


def _program(job: dict[str, Any]) -> None:
    """Run the program as a script on its standard input."""
    try:
        exec(_compiled(job["code"], "main.py"), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, MemoryError):
            _say({"raised": "MemoryError"})
        _print_error(error)
        sys.exit(1)
    finally:
        _flush()


def _check(job: dict[str, Any]) -> None:
    """Run the tests against the program behind the pipe and say how that went."""
    answers = open(PEER_ANSWERS, "rb")  # noqa: SIM115

    def answer() -> dict[str, Any]:
        line = answers.readline(job["answer_limit"])
        if not line.endswith(b"\n"):
            raise _CandidateEnded
        reply = json.loads(line)
        return reply if isinstance(reply, dict) else {}

    def candidate(*args: Any, **kwargs: Any) -> Any:
        _write(PEER_QUESTIONS, values.encode({"args": list(args), "kwargs": kwargs}))
        reply = answer()
        if "value" in reply:
            return values.decode(reply["value"])
        raise _foreign_error(reply)

    candidate.__name__ = job["entry_point"]
    try:
        if not answer().get("confined"):
            return _say({"outcome": "internal"})
        loaded = answer()
        if "raised" in loaded:
            raise _foreign_error(loaded)
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(_compiled(job["context"], "context.py"), namespace)
        namespace |= {job["entry_point"]: candidate, "candidate": candidate}
        exec(_compiled(job["source"], "tests.py"), namespace)
        if callable(namespace.get("check")):
            namespace["check"](candidate)
    except BaseException as error:
        _say({"outcome": _outcome(error), "detail": _one_line(error)})
    else:
        _say({"outcome": "passed"})


def _outcome(error: BaseException) -> str:
    if isinstance(error, _CandidateEnded | BrokenPipeError):
        return "ended"
    if isinstance(error, MemoryError):
        return "memory"
    foreign = getattr(error, "foreign", False)
    return "wrong" if isinstance(error, AssertionError) and not foreign else "runtime_error"


def _foreign_error(reply: dict[str, Any]) -> Exception:
    """The program's exception as a test may expect it: a built-in one by its name, else RuntimeError."""
    kind = getattr(builtins, str(reply.get("raised")), None)
    message = str(reply.get("message", ""))
    error: Exception = RuntimeError(f"{reply.get('raised')}: {message}")
    # StopIteration out of a call would end a test's own loop as if there were no cases left.
    ends_loops = (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ends_loops):
        with contextlib.suppress(TypeError):  # such as UnicodeDecodeError, which wants five arguments
            error = kind(message)
    error.foreign = True  # type: ignore[attr-defined]
    return error


def _attempt(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": values.encode(action())}
    except MemoryError:
        return {"raised": "MemoryError"}
    except BaseException as error:
        _print_error(error)
        return {"raised": type(error).__name__, "message": str(error)[:_MESSAGE_LIMIT]}


def _print_error(error: BaseException) -> None:
    """As the interpreter would have, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames, limit=-8)


def _compiled(source: str, name: str) -> CodeType:
    return compile(source, name, "exec", dont_inherit=True)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_LIMIT]


def _say(message: dict[str, Any]) -> None:
    _write(ANSWERS, json.dumps(message))


def _write(descriptor: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
