"""Attacks that use things up: memory, time, output, descriptors, the patience of whoever reads the result."""

from dataclasses import replace

from sandbox.attacks.attack import DEFAULT_LIMITS, ONE_SECOND, Attack, Family, Layer, system_call

_SMALL_OUTPUT = replace(DEFAULT_LIMITS, output_kb=8)


def _use(name: str, success: str, layer: Layer, body: str, **rest: object) -> Attack:
    program = "import sys, os, time\ndef attack():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return Attack(name, success, layer, f"{program}    return 'breached'\n", **rest)  # type: ignore[arg-type]


def _endless(name: str, body: str, **rest: object) -> Attack:
    """Ends by itself after three seconds, so that it is harmless where no clock stops it."""
    return _use(
        name, "it runs for longer than its second", "clock in the host", "end = time.monotonic() + 3\n" + body,
        limits=ONE_SECOND, succeeds_without=("clock in the host",), **rest,
    )  # fmt: skip


FAMILY = Family(
    "resources",
    "use up memory, time, disk, output, descriptors, or the host's patience",
    (
        _use(
            "mapping two gigabytes",
            "address space far above the limit",
            "resource limits",
            "import mmap\nkept = mmap.mmap(-1, 2 * 2**30)",
            succeeds_without=("resource limits",),
        ),
        _use(
            "a list that grows",
            "400 MB are held",
            "resource limits",
            "kept = [bytearray(10**7) for _ in range(40)]",
            succeeds_without=("resource limits",),
        ),
        _use("one huge string", "10 GB are held", "resource limits", "kept = 'x' * 10**10"),
        _use(
            "a compressed bomb",
            "400 KB become 400 MB",
            "resource limits",
            "import zlib\nzlib.decompress(zlib.compress(bytes(4 * 10**8)))",
        ),
        _use("raising its own limit", "the limit is gone", "resource limits",
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
            succeeds_without=("resource limits",),
        ),
        _use("raising the limit through the C library", "the limit is gone", "resource limits",
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nnone = (ctypes.c_uint64 * 2)(-1, -1)\n"
            "if libc.prlimit(0, 9, none, None) < 0:\n    raise OSError(ctypes.get_errno(), os.strerror(1))",
        ),
        _use("raising the limit of another process", "the host's limits change", "system-call filter",
            "import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (16, 16))",
        ),
        _use(
            "a thousand open files", "all of them are open", "resource limits",
            "kept = [open('/dev/null') for _ in range(1000)]",
            succeeds_without=("resource limits",),
        ),
        _use(
            "pipes full of data", "kernel memory is held", "system-call filter",
            "kept = [os.pipe() for _ in range(4)]", succeeds_without=("system-call filter",),
        ),
        _use("a larger pipe", "kernel memory is held", "system-call filter",
            "import fcntl\nfcntl.fcntl(1, 1031, 1 << 20)"),
        _use("filling the disk in /tmp", "8 MB are on the disk", "system-call filter",
            "with open('@outdoors@/bomb', 'wb') as file:\n    file.write(bytes(8 * 2**20))",
            succeeds_without=("system-call filter", "Landlock", "resource limits"),
        ),
        _use("a sparse file", "a file of a terabyte", "system-call filter",
            "with open('@outdoors@/bomb', 'wb') as file:\n    file.truncate(2**40)"),
        system_call("shared memory (shmget)", "memory outlives the process", 29, 194, "0, 4096, 0o600 | 512",
                    succeeds_without=("system-call filter",)),
        system_call("message queue (msgget)", "a queue outlives the process", 68, 186, "0, -1"),
        system_call("locking memory (mlockall)", "memory cannot be swapped out", 151, 230, "3"),
        system_call("higher priority (setpriority)", "others wait", 141, 140, "0, 0, -20"),
        system_call("real-time scheduling", "others wait for ever", 144, 119, "0, 1, None"),
        system_call("watching files (inotify)", "a limited number of the user is used up", 294, 26),
        system_call("event counters (eventfd)", "kernel memory is held", 290, 19),
        system_call("timers that fire for ever (timer_create)", "signals go on", 222, 107, "0, None, None"),
        _endless("a busy loop", "while time.monotonic() < end: pass"),
        _endless("sleeping", "time.sleep(3)"),
        _endless("waiting for a signal that never comes",
                 "import signal\nsignal.sigtimedwait([signal.SIGUSR1], 3)"),
        _endless("ignoring every signal that asks",
                 "import signal\nfor number in set(range(1, 32)) - {9, 19}:\n"
                 "    signal.signal(number, signal.SIG_IGN)\n"
                 "while time.monotonic() < end: pass"),
        _endless("catching everything", "while time.monotonic() < end:\n    try:\n"
                 "        while time.monotonic() < end: pass\n    except BaseException: pass"),
        _use("a loop inside C", "it runs for longer than its second", "clock in the host",
             "sum(range(2 * 10**8))", limits=ONE_SECOND, succeeds_without=("clock in the host",)),
        _use("a regular expression that backtracks", "it runs for longer than its second", "clock in the host",
             "import re\nre.match('(a+)+$', 'a' * 26 + 'b')", limits=ONE_SECOND),
        _use("a huge power", "it runs for longer than its second", "clock in the host", "kept = 7 ** (3 * 10**7)",
             limits=ONE_SECOND),
        _use("a huge number as text", "it runs for longer than its second", "interpreter", "str(1 << 10**7)",
             limits=ONE_SECOND),
        Attack(
            "a program that never finishes loading", "it runs for longer than its second", "clock in the host",
            "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass\n"
            "def attack(): return 'breached'",
            limits=ONE_SECOND, succeeds_without=("clock in the host",),
        ),
        _use("output without end", "all of a megabyte is taken", "output cap",
             "for _ in range(100): sys.stdout.write('x' * 10000)", succeeds_without=("output cap",)),
        _use("errors without end", "all of a megabyte is taken", "output cap",
             "for _ in range(100): sys.stderr.write('x' * 10000)", succeeds_without=("output cap",)),
        _use("output without a line's end, past Python", "all of a megabyte is taken", "output cap",
             "for _ in range(100): os.write(1, b'x' * 10000)", succeeds_without=("output cap",)),
        Attack(
            "a huge return value", "the host holds 50 MB for it", "output cap",
            "def attack(): return 'x' * 50_000_000", tests=({"expected": "x" * 10}, ),
        ),
        Attack(
            "a small limit is kept to the byte", "9 KB come out of 8", "output cap",
            "import os\ndef attack():\n    os.write(1, b'x' * 9 * 1024)\n    return 'breached'", limits=_SMALL_OUTPUT,
        ),
        Attack(
            "recursion without end", "the host notices", "interpreter",
            "def attack(): return attack()",
        ),
        Attack(
            "recursion with the brake off", "the host notices", "resource limits",
            "import sys\nsys.setrecursionlimit(10**9)\ndef deep(value): return [deep, sorted([1], key=deep)]\n"
            "def attack(): return deep(1)",
        ),
        Attack(
            "nested source", "the compiler takes the host with it", "interpreter",
            "x = " + "(" * 500 + ")" * 500 + "\ndef attack(): return 'breached'",
        ),
        Attack(
            "a program of a megabyte", "it is run", "size cap",
            "#" * 2**20 + "\ndef attack(): return 'breached'",
        ),
    ),
)  # fmt: skip
