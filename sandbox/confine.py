"""Giving up, in a fixed order, everything a process does not need before it runs foreign code.

Nothing here can be undone by the process itself; `escapes` tries the doors from inside and names those still open.
"""

import ctypes
import fcntl
import math
import os
import platform
import resource
import socket
import sys
import sysconfig
from dataclasses import dataclass

from sandbox import landlock, seccomp
from sandbox.limits import Limits

_NOBODY = 65534
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_SIGKILL = 9


def missing_protections() -> list[str]:
    """What this kernel lacks of what the sandbox stands on."""
    found = [] if landlock.abi() else ["Landlock (Linux 5.13 or newer with landlock among its security modules)"]
    without_filter = seccomp.missing()
    return [*found, without_filter] if without_filter else found


def readable_paths() -> list[str]:
    """Python's own library, the shared libraries it may load, and a few harmless devices and tables."""
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(sys.base_prefix, "lib")} if sys.base_prefix not in {"/", "/usr"} else set()
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/localtime"]
    return [*sorted(library), *system, "/dev/null", "/dev/zero", "/dev/urandom"]


def die_with_parent(parent: int) -> None:
    """Be killed when process `parent` ends, and end now if it has already."""
    _libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@dataclass(frozen=True)
class Confinement:
    """What can be got ready once, before the forks."""

    ruleset: int | None
    """Landlock's descriptor, None where the kernel has no Landlock."""
    system_calls: bytes | None
    """The filter, None where the kernel has no filters."""
    change_user: bool
    address_space: int
    """Bytes that the bare interpreter has mapped already."""


def prepare() -> Confinement:
    """Get ready to confine processes forked from this one. Raises OSError."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    return Confinement(
        ruleset=_out_of_the_way(landlock.reading_ruleset(readable_paths())) if landlock.abi() else None,
        system_calls=seccomp.build_filter(platform.machine()) if not seccomp.missing() else None,
        change_user=can_change_user(),
        address_space=pages * resource.getpagesize(),
    )


def confine(limits: Limits, prepared: Confinement) -> None:
    """Confine this process for good; what the kernel lacks is left out. Raises OSError when a step fails."""
    os.environ.clear()
    os.chdir("/")
    os.umask(0o077)
    _set_limits(limits, prepared.address_space)
    _drop_privileges(prepared.change_user)
    if prepared.ruleset is not None:
        landlock.restrict_self(prepared.ruleset)
    if prepared.system_calls is not None:
        seccomp.install(prepared.system_calls)


def escapes() -> list[str]:
    """What a confined process can still do and should not; empty when all doors are shut."""
    doors = {
        "read /etc/passwd": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "write to /tmp": lambda: os.close(os.open("/tmp/sandbox-escape", os.O_WRONLY | os.O_CREAT)),
        "make a socket": lambda: socket.socket().close(),
        "fork": _fork_and_end,
    }
    found = []
    for name, door in doors.items():
        try:
            door()
        except OSError:
            continue
        found.append(name)
    return found


def can_change_user() -> bool:
    """Whether a confined process may become nobody: we are root, and nobody can read Python's library.

    Otherwise a root process stays root in name, without any capability and behind Landlock.
    """
    if os.geteuid() != 0:
        return False
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            os.close(os.open(os.__file__, os.O_RDONLY))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _out_of_the_way(descriptor: int) -> int:
    """The same at a number above all that a new process is given."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(descriptor)
    return moved


def _set_limits(limits: Limits, address_space: int) -> None:
    cpu = math.ceil(limits.wall_s) + 1
    memory = address_space + limits.memory_mb * 2**20
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _drop_privileges(change_user: bool) -> None:
    libc = _libc()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs refused")
    if os.geteuid() == 0:
        for capability in range(64):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        if change_user:
            _become_nobody()
    # _LINUX_CAPABILITY_VERSION_3, this process; then no effective, permitted or inheritable capability
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "dropping capabilities refused")
    # No core file whatever core_pattern says: the limit of 0 does not hold for a pipe.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _fork_and_end() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
