"""The program as its tests see it, across a pipe: functions are called, objects stay where they are.

What is compared is compared here. Of an object that stayed over there, nothing is asked that could decide a
comparison: not whether it equals something, not whether it is true.
"""

import builtins
import contextlib
import json
import os
import types
from collections.abc import Collection, Iterator
from typing import Any

from sandbox import values


class CandidateEnded(BaseException):
    """The program's process is gone; a test's own `except Exception` must not hide that."""


class NotConfined(BaseException):
    """The program's process ended before it was confined, so before the program began."""


class CompileError(Exception):
    """The program does not compile."""


class Program:
    """The other end of two pipes: descriptors for questions and answers."""

    def __init__(self, questions: int, answers: int, answer_limit: int) -> None:
        self._questions = questions
        self._answers = open(answers, "rb")  # noqa: SIM115 - open as long as the process
        self._answer_limit = answer_limit
        self._exceptions: dict[str, type[Exception]] = {}

    def load(self) -> None:
        """Wait until it is ready. Raises NotConfined, CompileError, CandidateEnded, what its first lines raised."""
        try:
            self._reply()
        except CandidateEnded:
            raise NotConfined from None
        compiled = self._reply()
        if "compile_error" in compiled:
            raise CompileError(str(compiled["compile_error"]))
        loaded = self._reply()
        if "raised" in loaded:
            raise self._foreign_error(loaded)

    def ask(self, **question: Any) -> Any:
        """The value of the answer. Raises what the program raised, marked as foreign."""
        reply = self.exchange(question)
        if "value" in reply:
            return values.decode(str(reply["value"]), self._resolve)
        raise self._foreign_error(reply)

    def exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question, return the answer as it came."""
        line = values.encode(question, _refer).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._questions, line) :]
        except BrokenPipeError:
            raise CandidateEnded from None
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._answers.readline(self._answer_limit)
        if not line.endswith(b"\n"):
            raise CandidateEnded
        reply = json.loads(line)
        return reply if isinstance(reply, dict) else {}

    def _resolve(self, kind: str, item: Any) -> Any:
        if kind == "object":
            return Remote(self, item)
        if kind == "exception":
            name, base = map(str, item)
            return self._exceptions.setdefault(name, type(name, (_builtin_exception(base) or Exception,), {}))
        return values.no_resolution(kind, item)

    def _foreign_error(self, reply: dict[str, Any]) -> Exception:
        """The program's exception as a test may expect it: one it knows by name, else RuntimeError."""
        name, message = str(reply.get("raised")), str(reply.get("message", ""))
        error: Exception = RuntimeError(f"{name}: {message}")
        kind = self._exceptions.get(name) or _builtin_exception(name)
        if kind is not None:
            with contextlib.suppress(TypeError):  # such as UnicodeDecodeError, which wants five arguments
                error = kind(message)
        at = reply.get("at")
        error.foreign = f"{name}: {message}" + (f" at {at}" if at else "")  # type: ignore[attr-defined]
        return error


class Remote:
    """Stands for an object of the program."""

    def __init__(self, program: Program, number: Any) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask(do="get", on=self._number, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask(do="set", on=self._number, name=name, value=value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method("__call__", *args, **kwargs)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return int(self._method("__len__"))

    def __getitem__(self, key: Any) -> Any:
        return self._method("__getitem__", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._method("__setitem__", key, value)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._method("__iter__")
        return iter(iterator) if not isinstance(iterator, Remote) else iterator._items()

    def __next__(self) -> Any:
        reply = self._program.exchange(self._question("__next__"))
        # Here, and nowhere else, the end of an iteration may come from over there.
        if reply.get("raised") == "StopIteration":
            raise StopIteration
        if "value" not in reply:
            raise self._program._foreign_error(reply)
        return values.decode(str(reply["value"]), self._program._resolve)

    def _items(self) -> Iterator[Any]:
        while True:
            try:
                item = self.__next__()
            except StopIteration:
                return
            yield item

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._program.ask(**self._question(name, *args, **kwargs))

    def _question(self, name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"do": "call", "on": self._number, "name": name, "args": list(args), "kwargs": kwargs}


class RemoteModule(types.ModuleType):
    """What `import solution` finds.

    `from solution import *` brings neither `kept` nor the names of builtins: tests must not call the program's `len`.
    """

    def __init__(self, name: str, program: Program, kept: Collection[str] = ()) -> None:
        super().__init__(name)
        self.__dict__.update(_program=program, _kept={*kept, *dir(builtins)})

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [name for name in map(str, self._program.ask(do="names")) if name not in self._kept]
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask(do="get", on=None, name=name)


def _refer(value: Any) -> values.Reference:
    if isinstance(value, Remote):
        return {"object": value._number}
    return values.no_reference(value)


def _builtin_exception(name: str) -> type[Exception] | None:
    kind = getattr(builtins, name, None)
    # StopIteration out of a call would end a test's own loop as if there were no cases left.
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    return None if issubclass(kind, StopIteration | StopAsyncIteration) else kind
