"""Which files a process may still see, change and start, by Landlock: those below a few folders, and nothing else.

Rights and rulesets are those of include/uapi/linux/landlock.h; what the running kernel does not know is left out.
"""

import os
import struct
from collections.abc import Iterable

from sandbox import libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on x86-64 and aarch64
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# Writing files, removing folders and files, making folders, regular files and links, moving, truncating. No devices,
# sockets and pipes: whoever opens one from outside could be kept waiting.
_CHANGE = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | _TRUNCATE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """The kernel's Landlock version, 0 when it has none or keeps it switched off."""
    return max(0, libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION))


def ruleset(readable: Iterable[str], changeable: Iterable[str] = (), executable: Iterable[str] = ()) -> int:
    """A descriptor of the rules: what is below these paths can be read, and changed or started where so listed.

    No other file can be opened, made, moved or removed; paths that are not there are left out.

    On newer kernels TCP (ABI 4) and signals and abstract sockets to the outside (ABI 6) go too. Raises OSError.
    """
    version = abi()
    # 13 rights in ABI 1, then REFER (2), TRUNCATE (3), IOCTL_DEV (5)
    rights = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    attributes = struct.pack("Q", rights)
    if version >= 4:
        attributes += struct.pack("Q", _NET_BIND_TCP | _NET_CONNECT_TCP)
    if version >= 6:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    rules = _checked("create ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    reading = _READ_FILE | _READ_DIR
    for paths, access in ((readable, reading), (changeable, reading | _CHANGE), (executable, reading | _EXECUTE)):
        for path in paths:
            _allow(rules, path, access & rights)
    return rules


def restrict_self(rules: int) -> None:
    """Put this process under the rules for good, and close them. Needs no_new_privs. Raises OSError."""
    _checked("restrict self", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def confines_signals() -> bool:
    """Whether the kernel keeps signals inside the rules (ABI 6)."""
    return abi() >= 6


def _allow(rules: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        granted = access if os.path.isdir(path) else access & _FILE_RIGHTS
        rule = struct.pack("=Qi", granted, descriptor)
        _checked(f"allow {path}", _ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _checked(what: str, number: int, *arguments: object) -> int:
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(-result, f"landlock: {what} failed: {os.strerror(-result)}")
    return result
