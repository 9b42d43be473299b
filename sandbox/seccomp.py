"""A system-call filter as BPF, built here from the tables of `syscalls`, and installed for good.

What is not listed there fails with EPERM.
"""

import ctypes
import functools
import platform
import struct

from sandbox import syscalls
from sandbox.syscalls import Masked, Numbers

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD_WORD, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_RET_KILL_PROCESS, _RET_ALLOW, _RET_ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_ENOSYS, _REFUSED = 38, _RET_ERRNO | 1  # EPERM
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def missing() -> str | None:
    """Why this machine cannot filter system calls, or None when it can."""
    if platform.machine() not in _AUDIT_ARCH:
        return f"seccomp filter for {platform.machine()} (known: {', '.join(_AUDIT_ARCH)})"
    libc = ctypes.CDLL(None, use_errno=True)
    # A filter at address 0 fails with EFAULT where filters exist, with EINVAL or EPERM where they do not.
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return None if ctypes.get_errno() == 14 else "seccomp filters (CONFIG_SECCOMP_FILTER)"


@functools.cache
def build_filter(
    machine: str, *, changes: bool = False, starts: bool = False, processes: bool = False, signals: bool = False
) -> bytes:
    """The program for `machine` (x86_64 or aarch64) as an array of struct sock_filter.

    `changes` lets it change files (where Landlock agrees), `starts` replace itself by another program, `processes`
    have children and threads, `signals` send signals (to whom, Landlock must say).
    """
    column = list(_AUDIT_ARCH).index(machine)
    allowed = dict(syscalls.ALONE)
    masked = dict(syscalls.MASKED_ALONE)
    if changes:
        allowed |= syscalls.CHANGING_FILES
    elif not starts:
        masked |= syscalls.MASKED_READING
    if starts or processes:
        allowed |= syscalls.STARTING
        masked |= syscalls.MASKED_STARTING
    if processes:
        allowed |= syscalls.PROCESSES
        masked |= syscalls.MASKED_PROCESSES
    if signals:
        allowed |= syscalls.SIGNALS
    program = [
        _instruction(_LOAD_WORD, _ARCH),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], jump_true=1),
        _instruction(_RETURN, _RET_KILL_PROCESS),
        _instruction(_LOAD_WORD, _NR),
        *_answered(allowed, column, _RET_ALLOW),
        *_answered(syscalls.MISSING, column, _RET_ERRNO | _ENOSYS),
        *_answered(syscalls.IGNORED if changes else {}, column, _RET_ERRNO),
    ]
    for rule in masked.values():
        program += _checked(rule, column)
    return b"".join([*program, _instruction(_RETURN, _REFUSED)])


def _answered(table: dict[str, Numbers], column: int, answer: int) -> list[bytes]:
    program = []
    for numbers in table.values():
        number = numbers[column]
        if number is not None:
            program += [_instruction(_JUMP_EQUAL, number, jump_false=1), _instruction(_RETURN, answer)]
    return program


def _checked(rule: Masked, column: int) -> list[bytes]:
    number = rule.numbers[column]
    if number is None:
        return []
    low = _ARGS + 8 * rule.argument
    # Both halves of the 64-bit argument: comparing the lower one alone would let huge values through.
    check = [_instruction(_LOAD_WORD, low + 4), _instruction(_JUMP_EQUAL, 0, jump_true=1)]
    check += [_instruction(_RETURN, _REFUSED), _instruction(_LOAD_WORD, low), _instruction(_AND, rule.mask)]
    for value in rule.values:
        check += [_instruction(_JUMP_EQUAL, value, jump_false=1), _instruction(_RETURN, _RET_ALLOW)]
    check.append(_instruction(_RETURN, _REFUSED))
    return [_instruction(_JUMP_EQUAL, number, jump_false=len(check)), *check]


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
