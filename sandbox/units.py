"""The code around unit tests, inside a sandbox that holds no foreign code: unittest's classes and plain functions.

The module under test is across a pipe. How each test went is said over a channel that only this process has.
"""

import symtable
import sys
import types
import unittest
from typing import Any

from sandbox.channel import PEER_ANSWERS, PEER_QUESTIONS, say
from sandbox.checks import outcome
from sandbox.remote import Program, RemoteModule


def run(job: dict[str, Any]) -> None:
    """Run the named tests of a unit-test file against the module behind the pipe; say how each went as it ends."""
    program = Program(PEER_QUESTIONS, PEER_ANSWERS, job["answer_limit"])
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    try:
        program.load()
        own_names = _names_of(job["context"]) + _names_of(job["source"])
        sys.modules[job["module"]] = RemoteModule(job["module"], program, own_names)
        exec(compile(job["context"], "context.py", "exec", dont_inherit=True), module.__dict__)
        exec(compile(job["source"], "tests.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        # Of all tests: none of them can be run.
        return say({"test": None, **outcome(error)})
    cases = {name: _case(module, *name.split(".")) for name in job["tests"]}
    suites: dict[str, unittest.TestSuite] = {}
    for name, case in cases.items():
        suites.setdefault(name.rpartition(".")[0], unittest.TestSuite()).addTest(case)
    outcomes = _Outcomes({id(case): name for name, case in cases.items()})
    for suite in suites.values():
        suite.run(outcomes)


def _names_of(source: str) -> list[str]:
    """The names that a module gives a meaning to by itself."""
    symbols = symtable.symtable(source, "tests.py", "exec").get_symbols()
    return [symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()]


class _Outcomes(unittest.TestResult):
    """Says how each test went when it has ended; a test in parts has passed when all of them have."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._found: dict[str, Any] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        self._found = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        say({"test": self._names[id(test)], **(self._found or {"outcome": "wrong", "detail": "did not run"})})

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._found = self._found or {"outcome": "passed"}

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        # Also called for what a whole class needs; its tests then do not run, and so say nothing.
        self._found = outcome(err[1])

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._found = outcome(err[1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._found = {"outcome": "wrong", "detail": f"skipped: {reason}"[:500]}

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._found = {"outcome": "passed"}

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._found = {"outcome": "wrong", "detail": "succeeded where a failure was expected"}


def _case(module: types.ModuleType, owner: str, method: str | None = None) -> unittest.TestCase:
    """The test of that name: a method of a TestCase, a method of a plain class, or a function."""
    found = getattr(module, owner)
    if method is None:
        return unittest.FunctionTestCase(found)
    if issubclass(found, unittest.TestCase):
        return found(method)

    def in_an_instance_of_its_own() -> None:
        instance = found()
        getattr(instance, "setup_method", lambda: None)()
        try:
            getattr(instance, method)()
        finally:
            getattr(instance, "teardown_method", lambda: None)()

    return unittest.FunctionTestCase(in_an_instance_of_its_own)
