"""A system-call filter as BPF, built here and installed for good: what is not listed fails with EPERM.

Allowed is what a single-threaded interpreter needs to compute and to read files; nothing that makes a socket, a
process, a thread, a pipe, a memory file or a signal to somebody else.
"""

import ctypes
import platform
import struct

# name: (x86-64, aarch64); None where the architecture has no such call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # descriptors that are there already, and reading files (Landlock says which)
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436), "open": (2, None), "openat": (257, 56),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    # its own memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98),
    # signals to itself, timers, clocks
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "alarm": (37, None),
    "getitimer": (36, 102), "setitimer": (38, 103), "pause": (34, None), "nanosleep": (35, 101),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # asking about itself, ending
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getrandom": (318, 278), "getrusage": (98, 165),
    "getrlimit": (97, 163), "uname": (63, 160), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip

# name: ((x86-64, aarch64), index of the argument, values it may have)
_ALLOWED_WITH: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; not F_SETOWN (signals), F_SETPIPE_SZ (memory)
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 1030)),
    # TCGETS, FIONCLEX, FIOCLEX, TIOCGWINSZ: what io.open and isatty ask
    "ioctl": ((16, 29), 1, (0x5401, 0x5450, 0x5451, 0x5413)),
    # only its own limits, which are hard already
    "prlimit64": ((302, 261), 0, (0,)),
}

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_RET_KILL_PROCESS, _RET_ALLOW, _RET_EPERM = 0x80000000, 0x7FFF0000, 0x00050000 | 1
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_GET_SECCOMP = 22, 2, 21


def missing() -> str | None:
    """Why this machine cannot filter system calls, or None when it can."""
    if platform.machine() not in _AUDIT_ARCH:
        return f"seccomp filter for {platform.machine()} (known: {', '.join(_AUDIT_ARCH)})"
    libc = ctypes.CDLL(None, use_errno=True)
    # A filter at address 0 fails with EFAULT where filters exist, with EINVAL or EPERM where they do not.
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return None if ctypes.get_errno() == 14 else "seccomp filters (CONFIG_SECCOMP_FILTER)"


def build_filter(machine: str) -> bytes:
    """The program for `machine` (x86_64 or aarch64) as an array of struct sock_filter."""
    column = list(_AUDIT_ARCH).index(machine)
    program = [
        _instruction(_LOAD_WORD, _ARCH),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], jump_true=1),
        _instruction(_RETURN, _RET_KILL_PROCESS),
        _instruction(_LOAD_WORD, _NR),
    ]
    for numbers in _ALLOWED.values():
        number = numbers[column]
        if number is not None:
            program += [_instruction(_JUMP_EQUAL, number, jump_false=1), _instruction(_RETURN, _RET_ALLOW)]
    for numbers, argument, values in _ALLOWED_WITH.values():
        # Both halves of the 64-bit argument: comparing the lower one alone would let huge values through.
        check = [_instruction(_LOAD_WORD, _ARGS + 8 * argument + 4), _instruction(_JUMP_EQUAL, 0, jump_true=1)]
        check += [_instruction(_RETURN, _RET_EPERM), _instruction(_LOAD_WORD, _ARGS + 8 * argument)]
        for value in values:
            check += [_instruction(_JUMP_EQUAL, value, jump_false=1), _instruction(_RETURN, _RET_ALLOW)]
        check.append(_instruction(_RETURN, _RET_EPERM))
        program += [_instruction(_JUMP_EQUAL, numbers[column], jump_false=len(check)), *check]
    return b"".join([*program, _instruction(_RETURN, _RET_EPERM)])


def install(code: bytes) -> None:
    """Filter this process by `build_filter`'s program from now on. Needs no_new_privs. Raises OSError."""
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp filter refused")


def _instruction(code: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    """struct sock_filter {u16 code; u8 jt, jf; u32 k;}"""
    return struct.pack("HBBI", code, jump_true, jump_false, value)
