"""The attack suite on this machine: what was stopped, by which layer, and what was not.

Every attack runs as a model's program would. It succeeded when its tests passed, when something outside came to
harm, or when the host got into trouble; it counts as stopped only where there is a sign of what stopped it.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal

from sandbox.attacks import FAMILIES
from sandbox.attacks.attack import DEFAULT_LIMITS, Attack, Family, Layer
from sandbox.attacks.evidence import stopped_by
from sandbox.attacks.scene import Scene, descendants, left_behind
from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Result, Sandbox

Outcome = Literal["stopped", "SUCCEEDED", "unclear", "untried"]

# Where these fail, that an attack fails says nothing.
_HONEST = {
    "python": "def f(n): return n + 1\nif __name__ == '__main__': print(f(20))",
    "bash": "(echo $((20 + 1)))",
    "c": '#include <stdio.h>\nint main(void) { printf("%d", 20 + 1); return 0; }',
    "javascript": "setTimeout(() => console.log(20 + 1), 1)",
}
_TESTS: list[dict[str, Any]] = [{"stdin": "", "stdout": "21"}]
_PYTHON_TESTS = [
    *_TESTS,
    {"args": [20], "expected": 21},
    {"source": "assert f(20) == 21"},
    {"unit_tests": "from solution import *\ndef test_f(): assert f(20) == 21"},
]
_GRACE_S = 5.0


@dataclass(frozen=True)
class Finding:
    """What came of one attack."""

    family: str
    attack: str
    expected: Layer
    outcome: Outcome
    stopped_by: Layer | None
    """None where it was not stopped, or nobody knows by what."""
    evidence: str
    """The verdict and what the program's error said, or what came to harm."""

    @property
    def good(self) -> bool:
        return self.outcome in {"stopped", "untried"}


class Range:
    """A scene and the sandboxes in it; attacks are tried one after the other."""

    def __init__(self, *, allow_degraded: bool = False, enclosure: str = "none") -> None:
        self._allow_degraded, self._enclosure = allow_degraded, enclosure
        self._stack = ExitStack()
        self._sandboxes: dict[Limits, Sandbox] = {}
        self._languages: dict[str, str] = {}

    def __enter__(self) -> "Range":
        self.scene = self._stack.enter_context(Scene())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def attempt(self, family: Family, attack: Attack) -> Finding:
        """Let the attack loose and look what came of it. Raises SandboxUnavailable."""

        def finding(outcome: Outcome, evidence: str, by: Layer | None = None) -> Finding:
            return Finding(family.name, attack.name, attack.layer, outcome, by, evidence)

        missing = attack.missing_here()
        if missing:
            return finding("untried", missing)
        sandbox = self._sandbox(attack.limits)
        if attack.language not in self._languages:
            tests = _PYTHON_TESTS if attack.language == "python" else _TESTS
            self._languages[attack.language] = _honest(self._sandbox(DEFAULT_LIMITS), attack.language, tests)
        if self._languages[attack.language] != "passed":
            return finding("unclear", f"an honest {attack.language} program got {self._languages[attack.language]}")
        before = descendants()
        spec = {
            "entry_point": attack.entry_point,
            "language": attack.language,
            "tests": self.scene.fill_tests(attack.tests),
            **attack.spec,
        }
        started = time.monotonic()
        try:
            result = sandbox.run_tests(self.scene.fill(attack.program), parse_spec(spec))
        except Exception as error:
            # Whatever a program can make the host raise, it can make the training run raise.
            return finding("SUCCEEDED", f"the host raised {type(error).__name__}: {error}")
        harm = _trouble(result, time.monotonic() - started, attack.limits)
        if left := left_behind(before):
            harm.append(f"{len(left)} processes stayed")
        harm += self.scene.harm()
        if self.scene.token in f"{result.stdout}{result.stderr}{result.details}" and "@token@" not in str(attack.tests):
            harm.append("the secret is in the result")
        if (verdict := _honest(sandbox, "python", _TESTS)) != "passed":
            harm.append(f"the next program got {verdict}")
        if harm:
            return finding("SUCCEEDED", "; ".join(harm))
        evidence = " ".join([*dict.fromkeys(result.verdicts), _last_line(result)]).strip()
        by = stopped_by(attack, result)
        return finding("stopped" if by else "unclear", evidence, by)

    def _sandbox(self, limits: Limits) -> Sandbox:
        if limits not in self._sandboxes:
            opened = Sandbox(limits, allow_degraded=self._allow_degraded, enclosure=self._enclosure)
            self._sandboxes[limits] = self._stack.enter_context(opened)
        return self._sandboxes[limits]


def run_suite(
    families: Iterable[Family] = FAMILIES, *, allow_degraded: bool = False, enclosure: str = "none"
) -> Iterator[Finding]:
    """Every attack of `families`, in order. Raises SandboxUnavailable."""
    with Range(allow_degraded=allow_degraded, enclosure=enclosure) as place:
        for family in families:
            for attack in family.attacks:
                yield place.attempt(family, attack)


def main(
    *, as_json: bool = False, only: str | None = None, allow_degraded: bool = False, enclosure: str = "none"
) -> int:
    """Print the findings; the exit status is 1 when an attack succeeded or nobody can tell.

    Raises ValueError for an unknown family, SandboxUnavailable.
    """
    families = [family for family in FAMILIES if only is None or family.name == only]
    if not families:
        raise ValueError(f"no family of attacks is called {only!r}; there are {', '.join(f.name for f in FAMILIES)}")
    findings = []
    for finding in run_suite(families, allow_degraded=allow_degraded, enclosure=enclosure):
        findings.append(finding)
        if not as_json:
            print(_row(finding, first=len(findings) == 1), flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print(f"\n{_summary(findings)}")
    return 0 if all(finding.good for finding in findings) else 1


def _honest(sandbox: Sandbox, language: str, tests: list[dict[str, Any]]) -> str:
    """`passed` for a program that does nothing wrong, else its verdicts and details."""
    result = sandbox.run_tests(
        _HONEST[language], parse_spec({"language": language, "entry_point": "f", "tests": tests})
    )
    return "passed" if set(result.verdicts) == {"passed"} else " ".join([*result.verdicts, *result.details]).strip()


def _trouble(result: Result, seconds: float, limits: Limits) -> list[str]:
    """What the result itself shows of an attack that worked."""
    found = []
    if "passed" in result.verdicts:
        found.append("its tests passed")
    if "internal" in result.verdicts:
        found.append("the sandbox itself failed")
    if seconds > limits.wall_s + _GRACE_S:
        found.append(f"it took {seconds:.0f} s of {limits.wall_s:.0f}")
    try:
        "".join([result.stdout, result.stderr, *result.details]).encode()
    except UnicodeEncodeError:
        found.append("the result cannot be written")
    return found


def _last_line(result: Result) -> str:
    text = next(filter(None, result.details), "") or result.stderr
    return (text.strip().splitlines() or [""])[-1][:100]


def _row(finding: Finding, first: bool) -> str:
    columns = (finding.family, finding.attack, finding.expected, finding.stopped_by or "-", finding.outcome)
    header = ("family", "attack", "expected layer", "stopped by", "verdict")
    line = "  ".join(f"{text:<{width}}" for text, width in zip(columns, (10, 50, 22, 22, 9), strict=True))
    if not finding.good or finding.outcome == "untried":
        line += f"  {finding.evidence}"
    title = "  ".join(f"{text:<{width}}" for text, width in zip(header, (10, 50, 22, 22, 9), strict=True))
    return f"{title.rstrip()}\n{line.rstrip()}" if first else line.rstrip()


def _summary(findings: list[Finding]) -> str:
    outcomes = Counter(finding.outcome for finding in findings)
    layers = Counter(finding.stopped_by for finding in findings if finding.stopped_by)
    by = ", ".join(f"{layer} {count}" for layer, count in layers.most_common())
    return (
        f"{len(findings)} attacks: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}.\nBy: {by}."
    )
