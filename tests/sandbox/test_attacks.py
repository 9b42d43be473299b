"""Programs that try to get out, to cheat, or to stay. Each runs for real, in the sandbox of this machine."""

import os
import socket
import textwrap
import threading
import time
from pathlib import Path

import pytest

from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Result, Sandbox

LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def call(sandbox: Sandbox, body: str, expected: object = "done", args: tuple = ()) -> Result:
    """Run a program that defines attack(); passed means it returned `expected`."""
    spec = parse_spec({"entry_point": "attack", "tests": [{"args": list(args), "expected": expected}]})
    return sandbox.run_tests(textwrap.dedent(body), spec)


def errno_of(sandbox: Sandbox, statement: str) -> int:
    """The errno with which `statement` fails inside; 0 when it works. The program itself must end normally."""
    program = f"""
        import ctypes, os, socket, signal, subprocess, sys, threading
        libc = ctypes.CDLL(None, use_errno=True)
        def attack(value):
            try:
                {statement}
            except OSError as error:
                return error.errno == value or error.errno
            return 0
    """
    for errno in (1, 13, 38, 11):
        if call(sandbox, program, True, (errno,)).verdicts == ("passed",):
            return errno
    assert call(sandbox, program, 0, (0,)).verdicts == ("passed",), call(sandbox, program, 0, (0,))
    return 0


def test_an_honest_program_passes(sandbox):
    assert call(sandbox, "def attack(): return 'done'").verdicts == ("passed",)


def test_a_tcp_connection_to_a_listening_server_never_arrives(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        assert errno_of(sandbox, f"socket.create_connection(('127.0.0.1', {port}), 1)") == 1
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET"])
def test_no_socket_of_any_family_can_be_made(sandbox, family):
    assert errno_of(sandbox, f"socket.socket(socket.{family}, socket.SOCK_RAW)") == 1
    assert errno_of(sandbox, f"socket.socket(socket.{family})") == 1


def test_socketpairs_are_refused(sandbox):
    assert errno_of(sandbox, "socket.socketpair()") == 1


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", "/root/.bashrc", "/sys/kernel/mm", "/usr/bin/env"]
)
def test_files_outside_pythons_own_cannot_be_read(sandbox, path):
    assert errno_of(sandbox, f"os.open({path!r}, os.O_RDONLY)") in {1, 13}


def test_a_world_readable_secret_cannot_be_read_even_through_dot_dot(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("token")
    secret.chmod(0o644)
    assert errno_of(sandbox, f"open({str(secret)!r})") == 13
    assert errno_of(sandbox, f"open({'/usr/lib/../..' + str(secret)!r})") == 13


def test_directories_cannot_be_listed(sandbox):
    assert errno_of(sandbox, "os.listdir('/')") == 13
    assert errno_of(sandbox, "os.listdir('.')") == 13


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/var/tmp", "."])
def test_nothing_can_be_written_anywhere(sandbox, place):
    name = f"sandbox-attack-{os.getpid()}"
    assert errno_of(sandbox, f"open({place + '/' + name!r}, 'w')") in {1, 13}
    assert not Path("/" if place == "." else place, name).exists()


def test_its_own_library_cannot_be_rewritten(sandbox):
    assert errno_of(sandbox, "open(os.__file__, 'a')") == 13
    assert errno_of(sandbox, "os.truncate(os.__file__, 0)") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "os.mkdir('/tmp/attack')",
        "os.symlink('/etc/passwd', '/tmp/attack')",
        "os.link(os.__file__, '/tmp/attack')",
        "os.rename(os.__file__, '/tmp/attack')",
        "os.unlink('/tmp/attack-file')",
        "os.chmod('/tmp/attack-file', 0o777)",
        "os.chown('/tmp/attack-file', 1, 1)",
        "os.utime('/tmp/attack-file')",
        "os.setxattr('/tmp/attack-file', 'user.a', b'b')",
        "os.mkfifo('/tmp/attack')",
        "os.memfd_create('attack')",
        "os.chdir('/tmp')",
        "os.chroot('/tmp')",
    ],
)
def test_the_file_system_cannot_be_changed(sandbox, statement):
    victim = Path("/tmp/attack-file")
    victim.write_text("kept")
    try:
        assert errno_of(sandbox, statement) in {1, 13}
        assert victim.read_text() == "kept"
        assert not Path("/tmp/attack").exists()
    finally:
        victim.unlink()


def test_processes_and_threads_cannot_be_started(sandbox):
    assert errno_of(sandbox, "os.fork()") == 1
    assert errno_of(sandbox, "os.execv('/bin/sh', ['sh'])") in {1, 13}
    assert errno_of(sandbox, "subprocess.run(['true'])") == 1
    started = "import threading\ndef attack():\n    threading.Thread(target=print).start()"
    assert call(sandbox, started).verdicts == ("runtime_error",)


def test_a_fork_bomb_ends_as_an_error_and_leaves_no_process(sandbox):
    before = processes()
    bomb = "import os\nwhile True:\n    os.fork()"
    assert call(sandbox, bomb).verdicts == ("runtime_error",)
    raw = "import ctypes\nlibc = ctypes.CDLL(None)\nfor _ in range(1000):\n    libc.fork()\ndef attack(): return 'done'"
    assert call(sandbox, raw).verdicts == ("passed",)
    assert processes() == before


def test_a_memory_bomb_is_a_memory_verdict(sandbox):
    assert call(sandbox, "def attack(): return len('x' * 10**10)").verdicts == ("memory",)
    growing = "def attack():\n    kept = []\n    while True:\n        kept.append(bytearray(10**7))"
    assert call(sandbox, growing).verdicts == ("memory",)


def test_memory_is_bounded_through_mmap_and_ctypes_too(sandbox):
    mapped = "import mmap\ndef attack():\n    return [mmap.mmap(-1, 2**26) for _ in range(100)] and 'done'"
    assert call(sandbox, mapped).verdicts == ("runtime_error",)
    raised = "import resource\ndef attack():\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return 'done'"
    assert call(sandbox, raised).verdicts == ("runtime_error",)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_bomb_is_an_output_verdict_and_what_is_kept_is_small(sandbox, stream):
    result = call(sandbox, f"import sys\ndef attack():\n    while True:\n        sys.{stream}.write('x' * 10000)")
    assert result.verdicts == ("output_limit",)
    assert len(result.stdout) + len(result.stderr) <= 4000


def test_a_huge_return_value_is_an_output_verdict(sandbox):
    assert call(sandbox, "def attack(): return 'x' * 50_000_000").verdicts[0] in {"output_limit", "memory"}


def test_the_host_and_the_zygote_cannot_be_killed(sandbox):
    zygote = sandbox._zygote._process.pid
    for victim in (os.getpid(), zygote, -1, 0):
        assert errno_of(sandbox, f"os.kill({victim}, 9)") == 1
    assert errno_of(sandbox, "os.kill(os.getppid(), 9)") == 1
    assert errno_of(sandbox, f"signal.pidfd_send_signal(os.pidfd_open({zygote}), 9)") == 1
    assert sandbox._zygote.alive


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ptrace", 101), ("process_vm_readv", 310), ("process_vm_writev", 311), ("io_uring_setup", 425),
        ("keyctl", 250), ("add_key", 248), ("bpf", 321), ("perf_event_open", 298), ("userfaultfd", 323),
        ("unshare", 272), ("setns", 308), ("mount", 165), ("clone3", 435), ("vfork", 58), ("execveat", 322),
        ("kexec_load", 246), ("init_module", 175), ("reboot", 169), ("shmget", 29), ("msgget", 68),
        ("inotify_init1", 294), ("setpriority", 141), ("open_by_handle_at", 304), ("pidfd_getfd", 438),
        ("prctl", 157), ("seccomp", 317), ("personality", 135), ("tgkill", 234), ("rt_sigqueueinfo", 129),
    ],
)  # fmt: skip
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_dangerous_system_calls_are_refused_by_number(sandbox, name, number):
    program = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def attack():
            result = libc.syscall({number}, 0, 0, 0, 0, 0)
            return [result, ctypes.get_errno()]
    """
    assert call(sandbox, program, [-1, 1]).verdicts == ("passed",), name


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 has the x32 numbers")
def test_the_x32_numbers_are_no_way_around_the_filter(sandbox):
    program = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def attack():
            return [libc.syscall(0x40000000 + 41, 2, 1, 0), ctypes.get_errno()]
    """
    assert call(sandbox, program, [-1, 1]).verdicts == ("passed",)


def test_huge_ioctl_and_fcntl_arguments_do_not_slip_through_the_filter(sandbox):
    program = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def attack():
            return libc.syscall(16, 0, ctypes.c_ulong(0x100005401), 0) == -1 and ctypes.get_errno()
    """
    if os.uname().machine == "x86_64":
        assert call(sandbox, program, 1).verdicts == ("passed",)
    assert errno_of(sandbox, "import fcntl; fcntl.fcntl(1, 1031, 1 << 20)") == 1
    assert errno_of(sandbox, "import fcntl; fcntl.ioctl(1, 0x5412, b'x')") == 1


def test_no_secret_of_the_hosts_environment_is_inside(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    with Sandbox(LIMITS) as fresh:
        assert call(fresh, "import os\ndef attack(): return dict(os.environ)", {}).verdicts == ("passed",)
        getenv = """
            import ctypes
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_char_p
            def attack(): return libc.getenv(b'AWS_SECRET_ACCESS_KEY')
        """
        assert call(fresh, getenv, None).verdicts == ("passed",)


def test_only_the_five_descriptors_of_the_harness_are_open(sandbox, tmp_path):
    program = """
        import os
        def attack():
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


def test_neither_burnish_nor_installed_packages_can_be_imported(sandbox):
    for name in ("burnish", "pyarrow", "pydantic", "pytest"):
        assert call(sandbox, f"import {name}\ndef attack(): return 'done'").verdicts == ("runtime_error",)


def test_expected_values_and_other_jobs_are_not_in_its_memory(sandbox):
    marker = "canary-of-an-earlier-job"
    call(sandbox, f"SECRET = '{marker}'\ndef attack(): return 'expected-canary'", "expected-canary")
    program = """
        import ctypes, re
        def attack():
            needles = [bytes(reversed(b'boj-reilrae-na-fo-yranac')), bytes(reversed(b'yranac-detcepxe'))]
            lines = open('/proc/self/maps').read()
            return 'read its own maps'
    """
    assert call(sandbox, program).verdicts == ("runtime_error",)  # /proc is out of reach
    objects = """
        import gc
        def attack():
            needles = [''.join(reversed('boj-reilrae-na-fo-yranac')), ''.join(reversed('yranac-detcepxe'))]
            def strings():
                for thing in gc.get_objects():
                    yield from (t for t in gc.get_referents(thing) if type(t) is str)
            hits = [n for s in strings() for n in needles if n in s and s not in needles]
            return hits
    """
    assert call(sandbox, objects, []).verdicts == ("passed",)


def test_time_limits_hold_against_ignored_signals_and_sleep():
    with Sandbox(Limits(wall_s=1)) as quick:
        for body in (
            "import signal\nfor n in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):\n"
            "    signal.signal(n, signal.SIG_IGN)\ndef attack():\n    while True: pass",
            "import time\ndef attack(): time.sleep(60)",
            "import signal\ndef attack(): signal.pause()",
            "while True: pass",
            "def attack(): return sum(range(10**12))",
            "import re\ndef attack(): return re.match('(a+)+$', 'a' * 60 + 'b')",
        ):
            started = time.monotonic()
            assert call(quick, body).verdicts == ("timeout",)
            assert time.monotonic() - started < 6


def test_catching_everything_does_not_keep_a_program_alive():
    with Sandbox(Limits(wall_s=1)) as quick:
        body = """
            def attack():
                while True:
                    try:
                        while True: pass
                    except BaseException: pass
        """
        assert call(quick, body).verdicts == ("timeout",)


def test_a_crash_is_an_error(sandbox):
    assert call(sandbox, "import ctypes\ndef attack(): ctypes.string_at(0)").verdicts == ("runtime_error",)
    assert call(sandbox, "import os\ndef attack(): os.abort()").verdicts == ("runtime_error",)
    deep = "import sys\nsys.setrecursionlimit(10**9)\ndef attack(): return attack()"
    assert call(sandbox, deep).verdicts[0] in {"runtime_error", "memory", "timeout"}


def test_an_unwieldy_program_is_refused_without_being_run(sandbox):
    assert call(sandbox, "#" * 300_000).verdicts == ("refused",)


def test_two_hundred_runs_leave_no_process_and_no_descriptor(sandbox):
    call(sandbox, "def attack(): return 'done'")
    descriptors, running = len(os.listdir("/proc/self/fd")), processes()
    bodies = ["def attack(): return 'done'", "import os\nos._exit(3)", "x =", "def attack(): return 'x' * 200_000"]
    for number in range(200):
        call(sandbox, bodies[number % len(bodies)])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert processes() == running


def test_a_closed_sandbox_leaves_no_process_and_no_descriptor():
    descriptors, running = len(os.listdir("/proc/self/fd")), processes()
    with Sandbox(LIMITS) as short:
        call(short, "def attack(): return 'done'")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert processes() == running


def test_sandboxes_work_side_by_side_in_threads():
    verdicts = []

    def work(number: int) -> None:
        with Sandbox(LIMITS) as own:
            for _ in range(5):
                verdicts.append(call(own, f"def attack(): return {number}", number).verdicts)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [("passed",)] * 15


def processes() -> set[str]:
    """Ids of our descendants, zombies included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[entry.name] = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
    found = {str(os.getpid())}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more
