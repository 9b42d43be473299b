"""What stays after a run: no process, no descriptor, nothing of one program for the next to find."""

import os
import textwrap
import threading

import pytest

from sandbox.attacks.scene import descendants
from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Result, Sandbox

LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def call(sandbox: Sandbox, program: str, expected: object = "done") -> Result:
    spec = parse_spec({"entry_point": "f", "tests": [{"expected": expected}]})
    return sandbox.run_tests(textwrap.dedent(program), spec)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_two_hundred_runs_leave_no_process_and_no_descriptor(sandbox):
    call(sandbox, "def f(): return 'done'")
    before = descriptors(), descendants()
    programs = ["def f(): return 'done'", "import os\nos._exit(3)", "x =", "def f(): return 'x' * 200_000"]
    for number in range(200):
        call(sandbox, programs[number % len(programs)])
    assert (descriptors(), descendants()) == before


def test_a_closed_sandbox_leaves_no_process_and_no_descriptor():
    before = descriptors(), descendants()
    with Sandbox(LIMITS) as short:
        call(short, "def f(): return 'done'")
    assert (descriptors(), descendants()) == before


def test_only_the_five_descriptors_of_the_harness_are_open(tmp_path):
    program = """
        import os
        def f():
            found = []
            for number in range(256):
                try:
                    os.fstat(number)
                    found.append(number)
                except OSError:
                    pass
            return found
    """
    with (tmp_path / "open-in-the-host").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        with Sandbox(LIMITS) as fresh:
            assert call(fresh, program, [0, 1, 2, 3, 4]).verdicts == ("passed",)


def test_a_program_finds_nothing_of_the_one_before(sandbox):
    marker = "canary-of-an-earlier-program"
    first = f"import builtins, random\nbuiltins.left = SECRET = '{marker}'\nrandom.left = 1\ndef f(): return 'canary'"
    assert call(sandbox, first, "canary").verdicts == ("passed",)
    second = """
        import builtins, gc, random
        needles = [''.join(reversed('margorp-reilrae-na-fo-yranac')), ''.join(reversed('yranac'))]
        def f():
            texts = (t for thing in gc.get_objects() for t in gc.get_referents(thing) if type(t) is str)
            hits = [needle for text in texts for needle in needles if needle in text and text not in needles]
            return hits + [hasattr(builtins, 'left'), hasattr(random, 'left')]
    """
    assert call(sandbox, second, [False, False]).verdicts == ("passed",)


def test_sandboxes_work_side_by_side_in_threads():
    verdicts = []

    def work(number: int) -> None:
        with Sandbox(LIMITS) as own:
            for _ in range(5):
                verdicts.append(call(own, f"def f(): return {number}", number).verdicts)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [("passed",)] * 15
