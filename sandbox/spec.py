"""What a program is tested against: calls with expected values, input with expected output, or assertions."""

from dataclasses import dataclass
from typing import Any


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
    """Given `stdin`, the program ends normally and has written `stdout`; compared outside."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class AssertTest:
    """Python source that asserts about `candidate`, directly or in `def check(candidate)`.

    It runs in a second sandbox of its own, where `candidate` (also under the function's name) calls over to the
    program. So the program can neither see the assertions nor touch what decides them.
    """

    source: str


Test = CallTest | StdioTest | AssertTest


@dataclass(frozen=True)
class Spec:
    """Tests and what they need to know of the program."""

    tests: tuple[Test, ...]
    entry_point: str | None = None
    """The function under test; stdin tests need none."""
    context: str = ""
    """Trusted source that assertions may use, e.g. helper functions given with the problem."""


def parse_spec(raw: dict[str, Any]) -> Spec:
    """The Spec in `{tests: [...], entry_point?, context?}`; other keys are left alone.

    Each test is `{args, expected, kwargs?}`, `{stdin, stdout}` or `{source}`. Raises SpecError.
    """
    tests = raw.get("tests")
    if not isinstance(tests, list) or not tests:
        raise SpecError("tests must be a list of at least one test")
    spec = Spec(
        tests=tuple(_parse_test(test, f"tests.{index}") for index, test in enumerate(tests)),
        entry_point=_text(raw, "entry_point", "", optional=True),
        context=_text(raw, "context", "", optional=True) or "",
    )
    if spec.entry_point is None and any(not isinstance(test, StdioTest) for test in spec.tests):
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
    raise SpecError(f"{path} must be {{args, expected}}, {{stdin, stdout}} or {{source}}")


def _text(raw: dict[str, Any], key: str, path: str, optional: bool = False) -> str | None:
    value = raw.get(key)
    if value is None and optional:
        return None
    if not isinstance(value, str):
        raise SpecError(f"{path}.{key} must be a string".removeprefix("."))
    return value
