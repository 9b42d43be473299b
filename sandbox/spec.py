"""What a program is tested against: calls, input and output, assertions, or a file of unit tests."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.compare import RULES
from sandbox.languages import LANGUAGES
from sandbox.unit_names import names_of_tests


class SpecError(ValueError):
    """A specification that cannot be run; the message names the test and the field."""


@dataclass(frozen=True)
class CallTest:
    """The function returns `expected`. The value is compared outside; the sandbox never holds it."""

    args: list[Any]
    kwargs: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class StdioTest:
    """Given `stdin`, the program ends normally and has written `stdout`; compared outside, by the spec's rule."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class AssertTest:
    """Python source that asserts about `candidate`, directly or in `def check(candidate)`.

    It runs in a second sandbox of its own, where `candidate` (also under the function's name) calls over to the
    program. So the program can neither see the assertions nor touch what decides them.
    """

    source: str


@dataclass(frozen=True)
class UnitTests:
    """A test file in the style of unittest, or of pytest with plain functions, that imports the module `solution`.

    It runs where assertions run. Each of its tests has a verdict; one that is not heard of has not passed.
    """

    source: str
    names: tuple[str, ...]


Test = CallTest | StdioTest | AssertTest | UnitTests


@dataclass(frozen=True)
class Spec:
    """Tests and what they need to know of the program."""

    tests: tuple[Test, ...]
    entry_point: str | None = None
    """The function under test; calls and assertions need one."""
    context: str = ""
    """Trusted source that assertions and unit tests may use, e.g. helper functions given with the problem."""
    language: str = "python"
    """What the program is written in; other languages have tests of input and output only."""
    compare: str = "whitespace"
    """How standard output is compared: whitespace, lines, exact or float."""
    tolerance: float = 1e-6
    """Of `float`: absolute or relative, whichever allows more."""
    checker: str | None = None
    """Trusted Python source, `check(input, expected, got)`, instead of a comparison; runs in a sandbox of its own."""
    files: Mapping[str, str] | None = None
    """The program may write files, in a work directory that holds these at the start. None: it has no such place."""

    @property
    def size(self) -> int:
        """Number of verdicts."""
        return sum(len(test.names) if isinstance(test, UnitTests) else 1 for test in self.tests)


def parse_spec(raw: dict[str, Any]) -> Spec:
    """The Spec in `{tests: [...]}` and the optional fields of Spec by their names; other keys are left alone.

    Each test is `{args, expected, kwargs?}`, `{stdin, stdout}`, `{source}` or `{unit_tests, count?}`. Raises SpecError.
    """
    tests = raw.get("tests")
    if not isinstance(tests, list) or not tests:
        raise SpecError("tests must be a list of at least one test")
    spec = Spec(
        tests=tuple(_parse_test(test, f"tests.{index}") for index, test in enumerate(tests)),
        entry_point=_text(raw, "entry_point", "", optional=True),
        context=_text(raw, "context", "", optional=True) or "",
        language=_one_of(raw, "language", "python", LANGUAGES),
        compare=_one_of(raw, "compare", "whitespace", RULES),
        tolerance=_tolerance(raw),
        checker=_checker(raw),
        files=_files(raw),
    )
    if spec.language != "python" and any(not isinstance(test, StdioTest) for test in spec.tests):
        raise SpecError(f"language {spec.language}: tests must be {{stdin, stdout}}; the other kinds need python")
    if spec.entry_point is None and any(isinstance(test, CallTest | AssertTest) for test in spec.tests):
        raise SpecError("entry_point is missing; name the function that the tests call")
    return spec


def _parse_test(raw: Any, path: str) -> Test:
    if isinstance(raw, dict):
        if set(raw) <= {"args", "kwargs", "expected"} and "expected" in raw:
            args, kwargs = raw.get("args", []), raw.get("kwargs", {})
            if not isinstance(args, list) or not isinstance(kwargs, dict):
                raise SpecError(f"{path}: args must be a list and kwargs an object")
            return CallTest(args, kwargs, raw["expected"])
        if set(raw) == {"stdin", "stdout"}:
            return StdioTest(str(_text(raw, "stdin", path)), str(_text(raw, "stdout", path)))
        if set(raw) == {"source"}:
            return AssertTest(str(_text(raw, "source", path)))
        if set(raw) <= {"unit_tests", "count"} and "unit_tests" in raw:
            return _unit_tests(raw, path)
    raise SpecError(f"{path} must be {{args, expected}}, {{stdin, stdout}}, {{source}} or {{unit_tests}}")


def _unit_tests(raw: dict[str, Any], path: str) -> UnitTests:
    source = str(_text(raw, "unit_tests", path))
    try:
        names = names_of_tests(source)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{path}.unit_tests: {error}") from None
    if raw.get("count", len(names)) != len(names):
        raise SpecError(f"{path}.count is {raw['count']!r}, but the file has {len(names)} tests: {', '.join(names)}")
    return UnitTests(source, tuple(names))


def _checker(raw: dict[str, Any]) -> str | None:
    source = _text(raw, "checker", "", optional=True)
    if source is not None:
        try:
            statements = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SpecError(f"checker: {error}") from None
        if not any(isinstance(found, ast.FunctionDef) and found.name == "check" for found in statements):
            raise SpecError("checker must define check(input, expected, got)")
    return source


def _files(raw: dict[str, Any]) -> dict[str, str] | None:
    files = raw.get("files")
    if files is None:
        return None
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise SpecError("files must be an object of names and texts; {} gives an empty work directory")
    for name in files:
        if not name or "/" in name or "\0" in name or name in {".", ".."}:
            raise SpecError(f"files: {name!r} must be a plain file name")
    return dict(files)


def _tolerance(raw: dict[str, Any]) -> float:
    value = raw.get("tolerance", 1e-6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise SpecError(f"tolerance is {value!r}; it must be a number from 0 on")
    return float(value)


def _one_of(raw: dict[str, Any], key: str, default: str, known: Mapping[str, Any]) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or value not in known:
        raise SpecError(f"{key} is {value!r}; use one of {', '.join(known)}")
    return value


def _text(raw: dict[str, Any], key: str, path: str, optional: bool = False) -> str | None:
    value = raw.get(key)
    if value is None and optional:
        return None
    if not isinstance(value, str):
        raise SpecError(f"{path}.{key} must be a string".removeprefix("."))
    return value
