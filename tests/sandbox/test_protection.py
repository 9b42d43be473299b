"""What happens where a protection is missing, and when the host or the zygote dies."""

import ctypes
import glob
import itertools
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from liveness import alive

from sandbox import landlock, seccomp, syscalls
from sandbox.confine import escapes
from sandbox.limits import Limits
from sandbox.process import Zygote
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox

SPEC = parse_spec({"entry_point": "f", "tests": [{"expected": 1}]})
ROOT = str(Path(__file__).resolve().parents[2])

# Makes Landlock's system calls fail as on a kernel without it, then does what is left of the script.
WITHOUT_LANDLOCK = """
import ctypes, struct, sys
sys.path.insert(0, {root!r})
from sandbox import seccomp
i = seccomp._instruction
code = i(0x20, 0) + i(0x15, 444, 0, 1) + i(0x06, 0x00050000 | 38) + i(0x06, 0x7FFF0000)
buffer = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)), 0, 0) == 0
from sandbox.process import SandboxUnavailable
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox
spec = parse_spec({{"entry_point": "f", "tests": [{{"expected": 1}}]}})
"""


def run_script(text: str) -> str:
    script = WITHOUT_LANDLOCK.format(root=ROOT) + text
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_landlock_it_refuses_and_says_what_is_missing():
    said = run_script("try:\n    Sandbox()\nexcept SandboxUnavailable as error:\n    print(error)")
    assert "Landlock" in said
    assert "lacks" in said


def test_without_landlock_it_runs_when_told_so_and_every_result_carries_the_mark():
    said = run_script(
        "with Sandbox(allow_degraded=True) as s:\n"
        "    print(s.run_tests('def f(): return 1', spec))\n"
        "    print(s.run_tests('import os\\ndef f(): return os.fork()', spec).verdicts)"
    )
    assert "verdicts=('passed',)" in said
    assert "degraded=True" in said
    assert "('runtime_error',)" in said  # what is left of the protection still works


def test_this_machine_has_both_and_is_not_degraded():
    assert landlock.abi() >= 1
    assert seccomp.missing() is None
    with Sandbox() as sandbox:
        assert not sandbox.run_tests("def f(): return 1", SPEC).degraded


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=4)))
def test_the_filters_of_both_architectures_are_well_formed(machine, flags):
    changes, starts, processes, signals = flags
    code = seccomp.build_filter(machine, changes=changes, starts=starts, processes=processes, signals=signals)
    assert len(code) % 8 == 0
    count = len(code) // 8
    assert count <= 4096  # BPF_MAXINSNS
    for index in range(count):
        operation = int.from_bytes(code[8 * index : 8 * index + 2], sys.byteorder)
        if operation in {0x15, 0x35}:
            assert index + 1 + max(code[8 * index + 2], code[8 * index + 3]) < count


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=4)))
def test_the_filter_answers_every_number_as_the_tables_say(machine, flags):
    changes, starts, processes, signals = flags
    code = seccomp.build_filter(machine, changes=changes, starts=starts, processes=processes, signals=signals)
    column = ["x86_64", "aarch64"].index(machine)
    arch = [0xC000003E, 0xC00000B7][column]
    allowed = syscalls.ALONE | (syscalls.CHANGING_FILES if changes else {})
    allowed |= syscalls.STARTING if starts or processes else {}
    allowed |= (syscalls.PROCESSES if processes else {}) | (syscalls.SIGNALS if signals else {})
    masked = syscalls.MASKED_ALONE | (syscalls.MASKED_READING if not changes and not starts else {})
    masked |= syscalls.MASKED_STARTING if starts or processes else {}
    masked |= syscalls.MASKED_PROCESSES if processes else {}
    allow, refuse, missing = 0x7FFF0000, 0x00050001, 0x00050000 | 38
    expected = {numbers[column]: allow for numbers in allowed.values()}
    expected |= {numbers[column]: missing for numbers in syscalls.MISSING.values()}
    expected |= {numbers[column]: 0x00050000 for numbers in (syscalls.IGNORED if changes else {}).values()}
    rules = {rule.numbers[column]: rule for rule in masked.values()}
    for number in [*range(700), 0x40000000, 0x40000000 + 1, 2**31, 2**32 - 1]:
        if number not in rules:
            assert answer_of(code, arch, number) == expected.get(number, refuse), number
            continue
        rule = rules[number]
        for value in {0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**63, *rule.values, *(v | ~rule.mask for v in rule.values)}:
            value &= 2**64 - 1
            fits = value < 2**32 and value & rule.mask in rule.values
            assert answer_of(code, arch, number, {rule.argument: value}) == (allow if fits else refuse), (number, value)
    assert answer_of(code, arch ^ 1, next(iter(expected))) == 0x80000000


def answer_of(code: bytes, arch: int, number: int, arguments: dict[int, int] | None = None) -> int:
    """What the program returns for a system call, by an interpreter of the instructions that it is made of."""
    words = [arguments.get(k, 0) for k in range(6)] if arguments else [0] * 6
    data = struct.pack("IIQ6Q", number, arch, 0, *words)
    at, accumulator = 0, 0
    while True:
        operation, jump_true, jump_false, value = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            accumulator = struct.unpack_from("I", data, value)[0]
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x15:
            at += jump_true if accumulator == value else jump_false
        else:
            assert operation == 0x35, operation
            at += jump_true if accumulator >= value else jump_false


def test_a_killed_zygote_is_replaced_and_the_next_program_runs():
    with Sandbox(Limits(wall_s=5)) as sandbox:
        os.kill(sandbox._zygote._process.pid, signal.SIGKILL)
        time.sleep(0.2)
        assert sandbox.run_tests("def f(): return 1", SPEC).verdicts == ("passed",)


def test_a_zygote_that_dies_during_a_run_gives_internal_not_wrong():
    import threading

    with Sandbox(Limits(wall_s=20)) as sandbox:
        pid = sandbox._zygote._process.pid
        killer = threading.Timer(0.7, os.kill, (pid, signal.SIGKILL))
        killer.start()
        result = sandbox.run_tests("import time\ndef f(): time.sleep(15)", SPEC)
        killer.join()
        assert result.verdicts == ("internal",)
        assert result.seconds < 10


def test_when_the_host_is_killed_nothing_of_the_sandbox_stays():
    script = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from sandbox.limits import Limits\nfrom sandbox.spec import parse_spec\nfrom sandbox.verdicts import Sandbox\n"
        "s = Sandbox(Limits(wall_s=60))\nprint(s._zygote._process.pid, flush=True)\n"
        "spec = parse_spec({'entry_point': 'f', 'tests': [{'expected': 1}]})\n"
        "s.run_tests('import time\\ndef f(): time.sleep(50)', spec)"
    )
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    zygote = int(host.stdout.readline())
    deadline = time.monotonic() + 20
    while not (program := children(zygote)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert program
    host.kill()
    host.wait()
    host.stdout.close()
    while (alive(zygote) or any(map(alive, program))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(zygote)
    assert not any(map(alive, program))


def test_the_interpreter_of_the_zygote_knows_nothing_of_the_host(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "value")
    with Sandbox() as sandbox:
        environment = Path(f"/proc/{sandbox._zygote._process.pid}/environ").read_bytes()
    assert environment == b"PYTHONHASHSEED=0\0"


def test_landlock_alone_keeps_files_out_of_reach(tmp_path):
    """Each layer holds by itself: here without the filter."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "file").write_text("x")
    outside.write_text("x")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
            landlock.restrict_self(landlock.ruleset([str(inside)]))
            (inside / "file").read_text()
            for attempt in (outside.read_text, lambda: (inside / "new").write_text("y"), (inside / "file").unlink):
                try:
                    attempt()
                except PermissionError:
                    continue
                break
            else:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_trying_the_doors_unconfined_finds_them_open_and_leaves_nothing():
    before = set(glob.glob("/tmp/sandbox-escape*"))
    assert {"read /etc/passwd", "write to /tmp", "make a socket", "fork"} <= set(escapes())
    assert set(glob.glob("/tmp/sandbox-escape*")) == before


def test_a_zygote_found_dead_is_dead_at_once_so_that_the_next_program_gets_a_fresh_one():
    for _ in range(5):
        zygote = Zygote()
        zygote._zygote_died()
        assert not zygote.alive
        zygote.close()
