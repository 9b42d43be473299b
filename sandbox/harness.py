"""The code around foreign code, inside the sandbox: load a program and answer calls, run it, or become another one.

What these say is never believed, only compared. The roles of `checks` run no foreign code: their program is across
a pipe, in a sandbox of its own.
"""

import io
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable
from types import CodeType
from typing import Any

from sandbox import checks, units, values
from sandbox.channel import ANSWERS, QUESTIONS, say

_MESSAGE_LIMIT = 500


def run(confine: Callable[[], None]) -> None:
    """Read the job, confine this process, do the job. Returns only when it ends normally."""
    questions = open(QUESTIONS, "rb")  # noqa: SIM115 - stays open as long as the process
    job = json.loads(questions.readline())
    confine()
    say({"confined": True})
    roles: dict[str, Callable[[], None]] = {
        "serve": lambda: _serve(job, questions),
        "program": lambda: _program(job),
        "become": lambda: _become(job),
        "check": lambda: checks.check(job),
        "units": lambda: units.run(job),
        "judge": lambda: checks.judge(job),
    }
    roles[job["role"]]()


def _serve(job: dict[str, Any], questions: io.BufferedReader) -> None:
    """Load the program, then answer one question a line."""
    code = _compiled(job["code"], "solution.py")
    module = _module("solution")
    say(_attempt(lambda: exec(code, module.__dict__), values.no_reference))
    objects = _Objects()
    for line in questions:
        question = values.decode(line, objects.resolve)
        refer = objects.refer if job["keeps_objects"] else values.no_reference
        say(_attempt(lambda question=question: _perform(question, module, objects), refer))  # type: ignore[misc]
        _flush()
    _flush()


def _program(job: dict[str, Any]) -> None:
    """Run the program as a script on its standard input."""
    code = _compiled(job["code"], "main.py")
    try:
        exec(code, _module("__main__").__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        say(_described(error))
        _print_error(error)
        sys.exit(1)
    finally:
        _flush()


def _become(job: dict[str, Any]) -> None:
    """Be another program from here on; its pipes to the host are only the three that every program has."""
    # Python ignores these two, and what is ignored stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in (QUESTIONS, ANSWERS):
        os.set_inheritable(descriptor, False)
    try:
        os.execve(job["argv"][0], job["argv"], job["environment"])
    except OSError as error:
        say({"failed": f"{job['argv'][0]}: {error.strerror}"})
        sys.exit(1)


class _Objects:
    """Objects that tests got hold of but that cannot leave, by number."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def refer(self, value: Any) -> values.Reference:
        if isinstance(value, type) and issubclass(value, Exception):
            base = next(kind for kind in value.__mro__ if kind.__module__ == "builtins")
            return {"exception": [value.__name__, base.__name__]}
        self._kept.append(value)
        return {"object": len(self._kept) - 1}

    def resolve(self, kind: str, item: Any) -> Any:
        return self._kept[item] if kind == "object" else values.no_resolution(kind, item)


def _perform(question: dict[str, Any], module: types.ModuleType, objects: _Objects) -> Any:
    """Get, set or call something of the module or of an object, or list the module's names."""
    if question["do"] == "names":
        return [name for name in vars(module) if not name.startswith("_")]
    on, name = question["on"], question["name"]
    owner = module if on is None else objects.resolve("object", on)
    if question["do"] == "get":
        return getattr(owner, name)
    if question["do"] == "set":
        return setattr(owner, name, question["value"])
    if on is None and not hasattr(module, name):
        raise NameError(f"name {name!r} is not defined")
    return getattr(owner, name)(*question["args"], **question["kwargs"])


def _module(name: str) -> types.ModuleType:
    """A module that the program's own classes can be looked up in."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def _compiled(source: str, name: str) -> CodeType:
    """The code; says how it went before anything foreign runs, so that can be believed."""
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except Exception as error:
        say({"compile_error": _one_line(error)})
        _print_error(error)
        sys.exit(1)
    say({"compiled": True})
    return code


def _attempt(action: Callable[[], Any], refer: values.Refer) -> dict[str, Any]:
    try:
        return {"value": values.encode(action(), refer)}
    except BaseException as error:
        if not isinstance(error, MemoryError):
            _print_error(error)
        return _described(error)


def _described(error: BaseException) -> dict[str, Any]:
    """Type, message and last frame in the program itself."""
    if isinstance(error, MemoryError):
        return {"raised": "MemoryError"}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FOREIGN]
    at = f"line {frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return {"raised": type(error).__name__, "message": str(error)[:_MESSAGE_LIMIT], "at": at}


_FOREIGN = {"solution.py", "main.py"}


def _print_error(error: BaseException) -> None:
    """As the interpreter would have, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames, limit=-8)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_LIMIT]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
