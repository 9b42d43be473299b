"""Attacks on the kernel and on other processes: tracing, signals, namespaces, rights, rare system calls."""

from sandbox.attacks.attack import Attack, Family, system_call

_FILTER = ("system-call filter",)
_FILTER_AND_PRIVILEGES = ("system-call filter", "dropped privileges")


def _signal(name: str, statement: str, success: str, **rest: object) -> Attack:
    program = f'import os, signal\ndef attack():\n    {statement}\n    return "breached"'
    return Attack(name, success, "system-call filter", program, **rest)  # type: ignore[arg-type]


FAMILY = Family(
    "kernel",
    "trace or signal other processes, gain rights, reach parts of the kernel that nothing here needs",
    (
        _signal(
            "stopping another process",
            "os.kill(@victim@, signal.SIGSTOP)",
            "it stands still",
            succeeds_without=("system-call filter", "Landlock", "dropped privileges"),
        ),
        _signal("killing the host", "os.kill(@host@, 0)", "the host can be signalled"),
        _signal(
            "killing the zygote",
            "os.kill(os.getppid(), 0)",
            "the zygote can be signalled",
            succeeds_without=("system-call filter", "Landlock", "dropped privileges"),
        ),
        _signal("signalling everybody", "os.kill(-1, 0)", "every process of the user gets it"),
        _signal("signalling a group", "os.killpg(os.getpgid(@victim@), 0)", "a whole group gets it"),
        _signal(
            "signalling by descriptor",
            "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
            "the zygote can be signalled",
        ),
        _signal(
            "a descriptor that signals its owner",
            "import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
            "input and output raise signals elsewhere",
        ),
        _signal("typing into a terminal (TIOCSTI)", "import fcntl; fcntl.ioctl(0, 0x5412, b'x')", "a command is typed"),
        system_call(
            "an argument that differs only in its upper half",
            "a forbidden ioctl looks like an allowed one",
            16,
            29,
            "0, ctypes.c_ulong(0x100005401), 0",
            succeeds_without=_FILTER,
        ),
        system_call("ptrace", "memory of the victim can be changed", 101, 117, "16, @victim@, 0, 0"),
        system_call("being traced", "the parent gets its signals", 101, 117, "0, 0, 0, 0", succeeds_without=_FILTER),
        system_call("writing another's memory", "the zygote runs other code", 311, 271, "os.getppid(), 0, 0, 0, 0, 0"),
        system_call("tgkill", "one thread of the zygote is signalled", 234, 131, "os.getppid(), os.getppid(), 0"),
        system_call("rt_sigqueueinfo", "a forged signal", 129, 138, "os.getppid(), 0, None"),
        system_call("keyctl", "keys of the kernel's keyring", 250, 219, "0, -3, 0", succeeds_without=_FILTER),
        system_call("add_key", "a key that others find", 248, 217, "b'user', b'a', b'b', 1, -3"),
        system_call("bpf", "a program inside the kernel", 321, 280, "0, None, 0", succeeds_without=_FILTER),
        system_call("perf_event_open", "counters of other processes", 298, 241, "None, 0, -1, -1, 0"),
        system_call("userfaultfd", "a window for races in the kernel", 323, 282, "1", succeeds_without=_FILTER),
        system_call("a new user namespace", "root inside, and more of the kernel to attack", 272, 97, "0x10000000",
                    succeeds_without=_FILTER_AND_PRIVILEGES),
        system_call("another's namespace (setns)", "it is in the host's namespaces", 308, 268, "0, 0"),
        system_call("mount", "files appear elsewhere", 165, 40, "b'none', b'@outdoors@', b'tmpfs', 0, None"),
        system_call("umount2", "what hides files is taken away", 166, 39, "b'@outdoors@', 2"),
        system_call("pivot_root", "another root", 155, 41, "b'@outdoors@', b'@outdoors@'"),
        system_call("mounting in steps (fsopen)", "files appear elsewhere", 430, 430, "b'tmpfs', 0"),
        system_call("copying a mount (open_tree)", "files appear elsewhere", 428, 428, "-100, b'/', 1"),
        system_call("setuid", "another user", 105, 146, "1000", succeeds_without=_FILTER_AND_PRIVILEGES),
        system_call("setgroups", "other groups", 116, 159, "0, None"),
        system_call("capset", "capabilities come back", 126, 91, "None, None", succeeds_without=_FILTER),
        system_call("prctl", "dumpable again, no death with the parent", 157, 167, "4, 1", succeeds_without=_FILTER),
        system_call("a filter of its own (seccomp)", "others answer system calls", 317, 277, "1, 8, None"),
        system_call("another personality", "no random addresses", 135, 92, "0x40000", succeeds_without=_FILTER),
        system_call("another host name", "the machine has another name", 170, 161, "None, -1"),
        system_call("the clock", "the machine has another time", 227, 112, "0, None"),
        system_call("swap", "memory goes to a file", 167, 224, "b'/nowhere', 0"),
        system_call("choosing processors", "the limit of processors is gone", 203, 122, "0, 0, None"),
        system_call("moving memory between nodes", "memory of others is moved", 256, 238, "0, 0, None, None"),
        system_call("moving data in the kernel (splice)", "data past the cap", 275, 76, "0, None, 1, None, 1, 0"),
        system_call("a call that does not exist", "the filter lets through what it does not know", 999, 999),
        Attack(
            "numbers of the x32 interface", "a socket by another number", "system-call filter",
            """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            def attack():
                if libc.syscall(0x40000000 + 41, 2, 1, 0) < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                return "breached"
            """,
            machine="x86_64",
        ),
        Attack(
            "the 32-bit entry of the kernel", "a socket by 32-bit machine code", "system-call filter",
            """
            import ctypes, mmap
            # mov eax, 359 (socket); mov ebx, 1 (AF_UNIX); mov ecx, 1 (SOCK_STREAM); xor edx, edx; int 0x80; ret
            code = bytes.fromhex("53 b8 67010000 bb 01000000 b9 01000000 31 d2 cd 80 5b c3")
            def attack():
                page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
                page.write(code)
                call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
                result = call()
                if result < 0:
                    raise OSError(-result, "refused")
                return "breached"
            """,
            machine="x86_64",
            succeeds_without=_FILTER,
        ),
        Attack(
            "a core file", "memory is written to the disk, or to a program of the host", "dropped privileges",
            """
            import ctypes
            libc = ctypes.CDLL(None)
            def attack():
                # PR_GET_DUMPABLE; the filter may refuse to say, and 0 is what we are after
                if libc.prctl(3, 0, 0, 0, 0) <= 0:
                    raise LookupError("nothing found")
                return "breached"
            """,
            succeeds_without=_FILTER_AND_PRIVILEGES,
        ),
    ),
)  # fmt: skip
