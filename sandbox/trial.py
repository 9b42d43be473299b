"""One program against its tests: what is started for each kind of test, and what its answers and its end mean."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sandbox import values
from sandbox.child import Child, answer_limit
from sandbox.compare import equal_texts
from sandbox.confine import PLAIN, Jail
from sandbox.languages import LANGUAGES, compile_limits, environment, missing
from sandbox.limits import Limits
from sandbox.outcomes import Outcome, compared, cut, ended, not_loaded, not_started, raised
from sandbox.process import Zygote
from sandbox.spec import AssertTest, CallTest, Spec, StdioTest, UnitTests
from sandbox.workdir import WorkDirectory

_HEAD = 2000
_OUTPUT = "output_limit"


class Trial:
    """Runs on one zygote; the limits hold for all tests together."""

    def __init__(self, zygote: Zygote, limits: Limits, code: str, spec: Spec) -> None:
        self._zygote, self._limits, self._code, self._spec = zygote, limits, code, spec
        self._language = LANGUAGES[spec.language]
        self._directory: WorkDirectory | None = None
        self._children: list[Child] = []
        self._deadline = 0.0

    def run(self) -> list[Outcome]:
        """An outcome for each test, `spec.size` of them."""
        if len(self._code.encode("utf-8", "replace")) > self._limits.code_kb * 1024:
            return self._all(Outcome("refused", f"a program of more than {self._limits.code_kb} KiB"))
        lacking = missing(self._spec.language)
        if lacking:
            return self._all(Outcome("internal", lacking))
        try:
            return self._run()
        finally:
            if self._directory is not None:
                self._directory.remove()

    def head(self, stream: str) -> str:
        """The beginning of what all tests together wrote."""
        text = b"".join(child.captured[stream][:_HEAD] for child in self._children)
        return text.decode("utf-8", "replace")[:_HEAD]

    def _run(self) -> list[Outcome]:
        if self._language is not None or self._spec.files is not None:
            source = {self._language.file: self._code} if self._language else {}
            self._directory = WorkDirectory({**(self._spec.files or {}), **source}, self._zygote.uid)
        if self._language is not None and self._language.compile:
            failed = self._compile()
            if failed:
                return self._all(failed)
        self._deadline = time.monotonic() + self._limits.wall_s
        calls = [test for test in self._spec.tests if isinstance(test, CallTest)]
        outcomes_of_calls = iter(self._calls(calls) if calls else [])
        outcomes: list[Outcome] = []
        for test in self._spec.tests:
            if isinstance(test, CallTest):
                outcomes.append(next(outcomes_of_calls))
            elif isinstance(test, StdioTest):
                outcomes.append(self._stdio(test))
            elif isinstance(test, AssertTest):
                outcomes.append(self._asserted(test))
            else:
                outcomes += self._units(test)
        return outcomes

    def _compile(self) -> Outcome | None:
        """None when it worked. The time it takes is its own."""
        assert self._language is not None
        assert self._directory is not None
        limits = compile_limits(self._limits)
        self._deadline = time.monotonic() + limits.wall_s
        path = self._directory.path
        job = {"role": "become", "argv": self._language.compile_argv(), "environment": environment(path)}
        child = self._zygote.start(job, limits, jail=self._language.compile_jail(path), directory=self._directory)
        confined, failed = self._answer(child), self._answer(child)
        self._finish(child)
        if failed is not None:
            return not_started(failed)
        if confined is None or child.cause == "internal":
            return not_loaded(child, confined, None)
        if child.cause is not None or not _succeeded(child):
            said = child.captured["err"].decode("utf-8", "replace").splitlines()
            return Outcome("compile_error", cut(" | ".join(said[:3]) or f"compiler: {ended(child).detail}"))
        self._directory.make_executable("main")
        return None

    def _calls(self, tests: Sequence[CallTest]) -> list[Outcome]:
        """All calls in one process; once it is gone, what ended it is the verdict of the rest."""
        child = self._serve(keeps_objects=False)
        confined, compiled, loaded = self._answer(child), self._answer(child), self._answer(child)
        outcomes = []
        for test in tests:
            if loaded is None or "raised" in loaded:
                outcomes.append(not_loaded(child, confined, compiled) if loaded is None else raised(loaded))
                continue
            question: dict[str, Any] = {"do": "call", "on": None, "name": self._spec.entry_point}
            question |= {"args": test.args, "kwargs": test.kwargs}
            self._zygote.ask(child, values.encode(question).encode())
            answer = self._answer(child)
            outcomes.append(ended(child) if answer is None else compared(answer, test.expected))
        self._finish(child)
        return [Outcome(_OUTPUT, child.detail)] * len(tests) if child.cause == _OUTPUT else outcomes

    def _stdio(self, test: StdioTest) -> Outcome:
        stdin = test.stdin.encode("utf-8", "replace")
        out_of_memory = self._language.out_of_memory if self._language else "MemoryError"
        if self._language is None:
            child = self._start({"role": "program", "code": self._code}, stdin)
            confined, compiled, said = self._answer(child), self._answer(child), self._answer(child)
        else:
            assert self._directory is not None
            argv, variables = self._language.run_argv(self._limits), environment(self._directory.path)
            child = self._start({"role": "become", "argv": argv, "environment": variables}, stdin)
            confined, compiled, said = self._answer(child), {"compiled": True}, None
            failed = self._answer(child)
            if failed is not None:
                self._finish(child)
                return not_started(failed)
        self._finish(child)
        if child.cause is not None or not _succeeded(child):
            if child.cause is None and said is not None and compiled is not None and "compiled" in compiled:
                return raised(said)
            return not_loaded(child, confined, compiled, out_of_memory)
        got = child.captured["out"].decode("utf-8", "replace")
        if self._spec.checker is not None:
            return self._judged(test, got)
        equal = equal_texts(got, test.stdout, self._spec.compare, self._spec.tolerance)
        return Outcome("passed") if equal else Outcome("wrong", cut(f"wrote {got[:200]!r}"))

    def _judged(self, test: StdioTest, got: str) -> Outcome:
        """What the checker says. Whatever ends it was caused by what it read: never our fault, never a pass."""
        job = {"role": "judge", "source": self._spec.checker, "input": test.stdin, "expected": test.stdout, "got": got}
        checker = self._zygote.start(job, self._limits)
        confined, said = self._answer(checker), self._answer(checker)
        self._finish(checker)
        if checker.cause == "internal" or (confined is None and checker.cause is None):
            return not_loaded(checker, confined, None)
        if said is None:
            return Outcome("wrong", f"checker: {ended(checker).verdict}")
        return Outcome(str(said["outcome"]), cut(str(said.get("detail", ""))))

    def _asserted(self, test: AssertTest) -> Outcome:
        job = {"role": "check", "source": test.source, "entry_point": self._spec.entry_point}
        program, checker, said = self._across(job, lambda checker: self._answer(checker))
        # An answer may overtake the kill for too much output; only at the end is all of it counted.
        for child in (program, checker):
            if child.cause == _OUTPUT:
                return Outcome(_OUTPUT, child.detail)
        return self._said(said, program, checker)

    def _units(self, test: UnitTests) -> list[Outcome]:
        """What the checker reports of each test by name; what it does not report, did not pass."""

        def reports(checker: Child) -> dict[str | None, dict[str, Any]]:
            found: dict[str | None, dict[str, Any]] = {}
            while (report := self._answer(checker)) is not None:
                found[report["test"]] = report
            return found

        job = {"role": "units", "source": test.source, "module": "solution", "tests": test.names}
        program, checker, found = self._across(job, reports)
        for child in (program, checker):
            if child.cause == _OUTPUT:
                return [Outcome(_OUTPUT, child.detail)] * len(test.names)
        found = found or {}
        of_all = found.get(None)
        if of_all is None and program.cause is None and checker.cause is None and _succeeded(checker):
            of_all = {"outcome": "wrong", "detail": "did not run"}
        return [self._said(found.get(name, of_all), program, checker) for name in test.names]

    def _across(self, job: dict[str, Any], listen: Callable[[Child], Any]) -> tuple[Child, Child, Any]:
        """Run trusted tests against the program across a pipe; returns both, ended, and what was listened to."""
        program = self._serve(keeps_objects=True)
        self._zygote.flush(program, self._deadline)
        if program.over:
            return program, program, None
        job |= {"context": self._spec.context, "answer_limit": answer_limit(self._limits)}
        checker = self._zygote.start(job, self._limits, peer=program)
        self._children.append(checker)
        said = listen(checker) if self._answer(checker) is not None else None
        self._finish(checker)
        self._finish(program)
        return program, checker, said

    def _said(self, report: dict[str, Any] | None, program: Child, checker: Child) -> Outcome:
        """From the one process that holds no foreign code."""
        outcome = report.get("outcome") if report else None
        if outcome == "internal" and program.cause is not None:
            return Outcome(program.cause, program.detail)
        if outcome == "ended" or report is None:
            return ended(program if program.cause or outcome else checker)
        return Outcome(str(outcome), cut(str(report.get("detail", ""))))

    def _serve(self, keeps_objects: bool) -> Child:
        return self._start({"role": "serve", "code": self._code, "keeps_objects": keeps_objects})

    def _start(self, job: dict[str, Any], stdin: bytes = b"") -> Child:
        """The program itself."""
        jail = PLAIN
        if self._directory is not None:
            changes = self._spec.files is not None
            path = self._directory.path
            jail = self._language.run_jail(path, changes) if self._language else Jail(path, changes=True)
        child = self._zygote.start(job, self._limits, stdin, jail=jail, directory=self._directory)
        self._children.append(child)
        return child

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

    def _all(self, outcome: Outcome) -> list[Outcome]:
        return [outcome] * self._spec.size


def _succeeded(child: Child) -> bool:
    return child.exit is not None and child.exit.status == 0
