"""One program against its tests, for people who want to see what the sandbox makes of it.

The tests are a file with the same JSON object that a task's verifier holds.
"""

import json
from dataclasses import asdict
from pathlib import Path

from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox


def main(program: Path, tests: Path, limits: Limits, *, as_json: bool = False, allow_degraded: bool = False) -> int:
    """Print the verdicts; the exit status is 0 when all tests passed.

    Raises OSError, ValueError (also SpecError) for files that cannot be read, SandboxUnavailable.
    """
    spec = parse_spec(json.loads(tests.read_text("utf-8")))
    with Sandbox(limits, allow_degraded=allow_degraded) as sandbox:
        result = sandbox.run_tests(program.read_text("utf-8"), spec)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        for number, (verdict, detail) in enumerate(zip(result.verdicts, result.details, strict=True)):
            print(f"test {number:<4} {verdict:<14} {detail}".rstrip())
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            if text:
                print(f"{name}:\n{text.rstrip()}")
        print(f"{result.seconds:.3f} s{', degraded' if result.degraded else ''}")
    return 0 if set(result.verdicts) == {"passed"} else 1
