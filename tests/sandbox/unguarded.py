"""Runs an attack with some guards taken away, to show that it works where nothing stops it.

The guards of the zygote are patched out in a zygote of its own; limits of the host are made generous; and instead of
comparing in the host, a grader of the usual kind shares its process with the program and believes what comes out.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox import process
from sandbox.attacks.attack import Attack
from sandbox.attacks.scene import Scene, descendants, left_behind
from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox

ROOT = str(Path(__file__).resolve().parents[2])

# What takes a guard of the zygote away, before it has started to work.
PATCHES = {
    "system-call filter": "import sandbox.seccomp as m; m.Filter.install = lambda self: None",
    "Landlock": "import sandbox.landlock as m; m.restrict_self = lambda *a, **k: None",
    "resource limits": "import resource as m; m.setrlimit = lambda *a: None",
    "dropped privileges": "import sandbox.confine as m; m._drop_privileges = lambda *a: None; m._PR_SET_DUMPABLE = 999",
    "cleared environment": "import os as m; type(m.environ).clear = lambda self: None",
    "clean environment": "",
    "closed descriptors": "import os as m; m.closerange = lambda *a: None",
}
IN_THE_HOST = {
    "clock in the host": lambda limits: replace(limits, wall_s=30),
    "output cap": lambda limits: replace(limits, output_kb=10_000),
    "resource limits": lambda limits: replace(limits, memory_mb=100_000),
}

SHARED_GRADER = """
import json, sys, types, unittest
job = json.load(sys.stdin)
solution = sys.modules["solution"] = types.ModuleType("solution")
exec(job["code"], solution.__dict__)
for test in job["tests"]:
    if "expected" in test:
        assert solution.attack(*test.get("args", [])) == test["expected"]
    if "unit_tests" in test:
        tests = types.ModuleType("tests")
        exec(test["unit_tests"], tests.__dict__)
        suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
        assert unittest.TextTestRunner().run(suite).wasSuccessful()
print("all tests passed")
"""
PICKLING_GRADER = """
import json, pickle, sys
job = json.load(sys.stdin)
namespace = {}
exec(job["code"], namespace)
sys.stdout.buffer.write(pickle.dumps([namespace["attack"](*test.get("args", [])) for test in job["tests"]]))
"""


def succeeds(attack: Attack, missing: Collection[str], scene: Scene) -> tuple[bool, str]:
    """Whether the attack works with the guards in `missing` taken away, and what was seen."""
    code, tests = scene.fill(attack.program), scene.fill_tests(attack.tests)
    before = descendants()
    try:
        if "comparison in the host" in missing:
            worked, seen = graded_in_its_process(code, tests)
        elif "typed values" in missing:
            worked, seen = graded_by_pickle(code, tests)
        else:
            worked, seen = sandboxed_without(missing, attack, code, tests)
        left = left_behind(before, patience_s=0.1)
        harm = scene.harm()
        return worked or bool(left or harm), f"{seen} {harm} {len(left)} left"
    finally:
        end_all(left_behind(before, patience_s=0))


def sandboxed_without(
    missing: Collection[str], attack: Attack, code: str, tests: list[dict[str, Any]]
) -> tuple[bool, str]:
    limits: Limits = attack.limits
    for guard in missing:
        limits = IN_THE_HOST.get(guard, lambda same: same)(limits)
    spec = parse_spec({"entry_point": attack.entry_point, "language": attack.language, "tests": tests, **attack.spec})
    with weakened_zygote(missing), Sandbox(limits, allow_degraded=True) as sandbox:
        result = sandbox.run_tests(code, spec)
    return "passed" in result.verdicts, str(result)


@contextmanager
def weakened_zygote(missing: Collection[str]) -> Iterator[None]:
    """Zygotes started meanwhile lack the guards."""
    start = subprocess.Popen
    patches = "; ".join(
        [f"import sys; sys.path.insert(0, {ROOT!r})", *(PATCHES[guard] for guard in missing if PATCHES.get(guard))]
    )

    def weakened(arguments: list[str], **settings: Any) -> subprocess.Popen[bytes]:
        flag = arguments.index("-c")
        arguments = [*arguments[: flag + 1], f"{patches}; sys.path.remove({ROOT!r}); {arguments[flag + 1]}"]
        if "clean environment" in missing:
            settings["env"] = {**os.environ, **settings["env"]}
        if "closed descriptors" in missing:
            settings |= {"close_fds": False, "pass_fds": ()}
            for descriptor in list(map(int, os.listdir("/proc/self/fd"))):
                if f"main({descriptor}" in arguments[flag + 1]:
                    os.set_inheritable(descriptor, True)
        return start(arguments, **settings)

    process.subprocess.Popen = weakened  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        process.subprocess.Popen = start  # type: ignore[misc]


def graded_in_its_process(code: str, tests: list[dict[str, Any]]) -> tuple[bool, str]:
    """Passed is who ends with status 0 or prints the last line; nobody looks whether the tests ran."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", SHARED_GRADER],
        input=json.dumps({"code": code, "tests": tests}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode == 0 or "all tests passed" in done.stdout, done.stderr[-300:]


def graded_by_pickle(code: str, tests: list[dict[str, Any]]) -> tuple[bool, str]:
    """Compared outside, but the values come as pickles."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", PICKLING_GRADER],
        input=json.dumps({"code": code, "tests": tests}).encode(),
        capture_output=True,
        timeout=30,
    )
    got = pickle.loads(done.stdout)  # noqa: S301 - this is the hole that is shown
    return got == [test["expected"] for test in tests], repr(got)


def end_all(pids: Collection[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue
