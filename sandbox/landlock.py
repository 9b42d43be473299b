"""Which files a process may still see, by Landlock: reading below a few folders, and nothing else.

Rights and rulesets are those of include/uapi/linux/landlock.h; what the running kernel does not know is left out.
"""

import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on x86-64 and aarch64
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """The kernel's Landlock version, 0 when it has none or keeps it switched off."""
    return max(0, _syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION))


def reading_ruleset(paths: Iterable[str]) -> int:
    """A descriptor of the rules: files below `paths` can be read, no other file can be opened, made or removed.

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
    ruleset = _checked("create ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in paths:
        _allow_reading(ruleset, path)
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Put this process under the rules for good, and close them. Needs no_new_privs. Raises OSError."""
    _checked("restrict self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        access = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
        rule = struct.pack("=Qi", access, descriptor)
        _checked(f"allow {path}", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _checked(what: str, *arguments: object) -> int:
    result = _syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {what} failed")
    return result


def _syscall(*arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(*arguments))
