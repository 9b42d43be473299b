"""System calls that Python has no function for, through one handle of the C library.

Made once, before the forks: a handle of its own would cost every program a tenth of a millisecond and 90 pages.
"""

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_prctl, _syscall, _capset = _LIBC.prctl, _LIBC.syscall, _LIBC.capset
_syscall.restype = ctypes.c_long
# _LINUX_CAPABILITY_VERSION_3, this process; then no effective, permitted or inheritable capability
_THIS_PROCESS, _NOTHING = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()


def prctl(option: int, argument: object = 0, pointer: object = 0) -> int:
    """prctl(2); returns its result, or minus the error number."""
    result: int = _prctl(option, argument, pointer, 0, 0)
    return result if result >= 0 else -ctypes.get_errno()


def syscall(number: int, *arguments: object) -> int:
    """syscall(2); returns its result, or minus the error number."""
    result: int = _syscall(number, *arguments)
    return result if result >= 0 else -ctypes.get_errno()


def drop_capabilities() -> None:
    """Give up every effective, permitted and inheritable capability. Raises OSError."""
    if _capset(_THIS_PROCESS, _NOTHING) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"dropping capabilities refused: {os.strerror(error)}")
