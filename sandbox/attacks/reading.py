"""Attacks that look for secrets: files, the environment, descriptors, memory, other processes."""

from sandbox.attacks.attack import Attack, Family, system_call

_TOKEN = ({"expected": "@token@"},)


def _file(name: str, expression: str, success: str, **rest: object) -> Attack:
    program = f"import os\ndef attack():\n    return {expression}"
    return Attack(name, success, "Landlock", program, **rest)  # type: ignore[arg-type]


FAMILY = Family(
    "reading",
    "read a secret of the host: files, /proc, environment, inherited descriptors, memory",
    (
        _file(
            "a file that everybody may read",
            "open('@secret@').read()",
            "the token in the file comes back",
            tests=_TOKEN,
            succeeds_without=("Landlock",),
        ),
        _file(
            "the same by way of a folder that may be read",
            "open('/usr/lib/../..@secret@').read()",
            "the token in the file comes back",
            tests=_TOKEN,
            succeeds_without=("Landlock",),
        ),
        _file(
            "the same through a handle without rights (O_PATH)",
            "os.read(os.open('secret', 0, dir_fd=os.open(os.path.dirname('@secret@'), os.O_PATH)), 99).decode()",
            "the token in the file comes back",
            tests=_TOKEN,
            succeeds_without=("Landlock",),
        ),
        _file("/etc/passwd", "open('/etc/passwd').read() and 'breached'", "the accounts of the host are known"),
        _file(
            "listing /",
            "os.listdir('/') and 'breached'",
            "the names in the root folder come back",
            succeeds_without=("Landlock",),
        ),
        _file("listing the current folder", "os.listdir('.') is None or 'breached'", "names come back"),
        _file(
            "/proc/self/environ",
            "open('/proc/self/environ').read() is None or 'breached'",
            "the environment as it was at the start comes back",
            succeeds_without=("Landlock", "dropped privileges"),
        ),
        _file("/proc/self/maps", "open('/proc/self/maps').read() and 'breached'", "addresses of the process come back"),
        _file("/proc/self/mem", "os.open('/proc/self/mem', os.O_RDWR) and 'breached'", "memory is a file"),
        _file("/proc/self/fd", "os.listdir('/proc/self/fd') and 'breached'", "descriptors can be listed"),
        _file(
            "environment of the parent",
            "'breached' if open(f'/proc/{os.getppid()}/environ').read() is not None else 0",
            "the zygote's environment comes back",
        ),
        _file(
            "environment of the host process",
            "'@token@' in open('/proc/@host@/environ').read() or 'breached'",
            "the environment of the process that runs the sandbox comes back",
        ),
        _file(
            "command line of process 1",
            "open('/proc/1/cmdline').read() and 'breached'",
            "the arguments of another process come back",
            succeeds_without=("Landlock",),
        ),
        _file("list of connections", "open('/proc/net/tcp').read() and 'breached'", "open connections are known"),
        _file("kernel settings", "open('/proc/sys/kernel/core_pattern').read() and 'breached'", "settings come back"),
        _file("/sys", "os.listdir('/sys/kernel') and 'breached'", "the machine's devices are known"),
        _file("raw memory devices", "os.open('/dev/mem', os.O_RDONLY) and 'breached'", "physical memory can be read"),
        _file("the terminal", "os.open('/dev/tty', os.O_RDWR) and 'breached'", "somebody's terminal can be read"),
        Attack(
            "environment of the host in os.environ",
            "a variable of the host is there",
            "clean start",
            """
            import os
            def attack():
                if "SANDBOX_CANARY" not in os.environ:
                    raise LookupError("nothing found")
                return os.environ["SANDBOX_CANARY"]
            """,
            tests=_TOKEN,
            succeeds_without=("clean environment", "cleared environment"),
        ),
        Attack(
            "environment of the host in the C library",
            "a variable of the host is there",
            "clean start",
            """
            import ctypes
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_char_p
            def attack():
                found = libc.getenv(b"SANDBOX_CANARY")
                if found is None:
                    raise LookupError("nothing found")
                return found.decode()
            """,
            tests=_TOKEN,
            succeeds_without=("clean environment", "cleared environment"),
        ),
        Attack(
            "descriptors that the host left open",
            "an open descriptor gives the token",
            "clean start",
            """
            import os
            def attack():
                for number in range(5, 1024):
                    try:
                        found = os.pread(number, 99, 0)
                    except OSError:
                        continue
                    if len(found) == 32:
                        return found.decode()
                raise LookupError("nothing found")
            """,
            tests=_TOKEN,
            succeeds_without=("closed descriptors",),
        ),
        Attack(
            "modules of the host",
            "a package that is installed beside the host can be imported",
            "clean start",
            """
            import importlib
            def attack():
                for name in ("burnish", "pydantic", "pyarrow", "pip", "pytest"):
                    try:
                        importlib.import_module(name)
                    except ImportError:
                        continue
                    return "breached"
                raise LookupError("nothing found")
            """,
        ),
        Attack(
            "arguments and path of the interpreter",
            "the interpreter says where the host lives",
            "clean start",
            """
            import sys
            def attack():
                if any("sandbox" in entry or "site-packages" in entry for entry in sys.path):
                    return "breached"
                raise LookupError("nothing found")
            """,
        ),
        Attack(
            "memory of the host process",
            "bytes of another process come back",
            "system-call filter",
            """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            libc.syscall.restype = ctypes.c_long
            number = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
            class Vector(ctypes.Structure):
                _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
            def attack():
                # Address space starts are random; any answer but a refusal means that it may look.
                buffer = ctypes.create_string_buffer(8)
                local, remote = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
                if libc.syscall(number, os.getppid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
                    if ctypes.get_errno() == 1:
                        raise OSError(1, os.strerror(1))
                return "breached"
            """,
            succeeds_without=("system-call filter", "dropped privileges"),
        ),
        system_call(
            "a descriptor of the host (pidfd_getfd)",
            "a copy of another process's descriptor",
            438,
            438,
            "0, 0, 0",
            succeeds_without=("system-call filter",),
        ),
        system_call(
            "a file by its handle (open_by_handle_at)",
            "a file is opened without its path",
            304,
            265,
            "-1, None, 0",
        ),
        system_call("openat2", "a file is opened by a call that few filters know", 437, 437, "-100, b'/etc', 0, 0"),
        system_call("kernel log (syslog)", "the kernel's messages come back", 103, 116, "10, 0, 0"),
        system_call("kcmp", "what two processes share is known", 312, 272),
    ),
)
