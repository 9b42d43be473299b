"""A system-call filter as BPF, built here from the tables of `syscalls`, and installed for good.

What is not listed there fails with EPERM.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
from dataclasses import dataclass

from sandbox import libc, syscalls
from sandbox.syscalls import Masked

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD_WORD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_RET_KILL_PROCESS, _RET_ALLOW, _RET_ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_ENOSYS, _REFUSED = 38, _RET_ERRNO | 1  # EPERM
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def missing() -> str | None:
    """Why this machine cannot filter system calls, or None when it can."""
    if platform.machine() not in _AUDIT_ARCH:
        return f"seccomp filter for {platform.machine()} (known: {', '.join(_AUDIT_ARCH)})"
    # A filter at address 0 fails with EFAULT where filters exist, with EINVAL or EPERM where they do not.
    answer = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None)
    return None if answer == -errno.EFAULT else "seccomp filters (CONFIG_SECCOMP_FILTER)"


@dataclass(frozen=True)
class Filter:
    """A program in memory, ready to be installed by any number of processes forked from this one."""

    code: ctypes.Array[ctypes.c_char]
    """An array of struct sock_filter."""
    header: bytes
    """struct sock_fprog {unsigned short len; struct sock_filter *filter;}, which points to it."""

    def install(self) -> None:
        """Filter this process by it from now on. Needs no_new_privs. Raises OSError."""
        answer = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self.header)
        if answer < 0:
            raise OSError(-answer, f"seccomp filter refused: {os.strerror(-answer)}")


@functools.cache
def ready(machine: str, *, changes: bool, starts: bool, processes: bool, signals: bool) -> Filter:
    """`build_filter`'s program in memory."""
    program = build_filter(machine, changes=changes, starts=starts, processes=processes, signals=signals)
    code = ctypes.create_string_buffer(program, len(program))
    return Filter(code, struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))


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
    answers: dict[int | None, list[bytes]] = {}
    for table, answer in (
        (allowed, _RET_ALLOW),
        (syscalls.MISSING, _RET_ERRNO | _ENOSYS),
        (syscalls.IGNORED if changes else {}, _RET_ERRNO),
    ):
        answers |= {numbers[column]: [_instruction(_RETURN, answer)] for numbers in table.values()}
    answers |= {rule.numbers[column]: _checked(rule) for rule in masked.values()}
    program = [
        _instruction(_LOAD_WORD, _ARCH),
        _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], jump_true=1),
        _instruction(_RETURN, _RET_KILL_PROCESS),
        _instruction(_LOAD_WORD, _NR),
        *_search(_ranges({number: answer for number, answer in answers.items() if number is not None})),
    ]
    return b"".join(program)


def _ranges(answers: dict[int, list[bytes]]) -> list[tuple[int, list[bytes]]]:
    """All numbers from 0 on in ranges with one answer, each by its first number; those not in `answers` are refused."""
    ranges: list[tuple[int, list[bytes]]] = [(0, [])]
    for number in sorted({0, *answers, *(number + 1 for number in answers)}):
        answer = answers.get(number, [_instruction(_RETURN, _REFUSED)])
        if ranges[-1][1] != answer:
            ranges.append((number, answer))
    return ranges[1:]


def _search(ranges: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Halve the ranges until one is left: the kernel runs a new filter for every number there is, in every process."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    return [_instruction(_JUMP_AT_LEAST, ranges[middle][0], jump_true=len(below)), *below, *above]


def _checked(rule: Masked) -> list[bytes]:
    low = _ARGS + 8 * rule.argument
    # Both halves of the 64-bit argument: comparing the lower one alone would let huge values through.
    check = [_instruction(_LOAD_WORD, low + 4), _instruction(_JUMP_EQUAL, 0, jump_true=1)]
    check += [_instruction(_RETURN, _REFUSED), _instruction(_LOAD_WORD, low), _instruction(_AND, rule.mask)]
    for value in rule.values:
        check += [_instruction(_JUMP_EQUAL, value, jump_false=1), _instruction(_RETURN, _RET_ALLOW)]
    return [*check, _instruction(_RETURN, _REFUSED)]


def _instruction(code: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    """struct sock_filter {u16 code; u8 jt, jf; u32 k;}"""
    return struct.pack("HBBI", code, jump_true, jump_false, value)
