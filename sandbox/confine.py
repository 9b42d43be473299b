"""Giving up, in a fixed order, everything a process does not need before it runs foreign code.

Nothing here can be undone by the process itself; `escapes` tries the doors from inside and names those still open.
"""

import fcntl
import glob
import math
import os
import platform
import resource
import socket
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

from sandbox import landlock, libc, seccomp, user
from sandbox.limits import Limits

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_SIGKILL = 9
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
# 1 pipes core dumps nowhere either, unlike 0.
_LIMITS_OF_ALL = ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0))
# The C library's loader, which the kernel starts every program with.
_LOADERS = ("/lib*/ld-*.so*", "/usr/lib*/ld-*.so*", "/lib/*/ld-*.so*")


@dataclass(frozen=True)
class Jail:
    """What one process may do besides computing and reading the system's libraries: by default nothing."""

    directory: str | None = None
    """Its work directory, where it starts; it may read what is there."""
    changes: bool = False
    """It may change files there."""
    readable: tuple[str, ...] = ()
    """Further files and folders that it may read."""
    programs: tuple[str, ...] | None = None
    """Files and folders whose programs it may become; None: it stays what it is."""
    processes: bool = False
    """It may have children and threads, up to the limit."""
    reserves: bool = False
    """It reserves far more addresses than it ever uses, as V8 does: only what it writes to is bounded."""


PLAIN = Jail()


@dataclass(frozen=True)
class Confinement:
    """What can be got ready once, before the forks."""

    readable: tuple[str, ...]
    ruleset: int | None
    """Landlock's descriptor for a process in the default jail, None where the kernel has no Landlock."""
    filters: bool
    """Whether the kernel has system-call filters."""
    uid: int | None
    """The user that confined processes become; None: they stay who we are."""
    address_space: int
    """Bytes that the bare interpreter has mapped already."""

    def system_calls(self, jail: Jail) -> seccomp.Filter | None:
        """The filter that goes with `jail`."""
        if not self.filters:
            return None
        starts = jail.programs is not None
        return seccomp.ready(
            platform.machine(),
            changes=jail.changes,
            starts=starts,
            processes=jail.processes,
            signals=starts and landlock.confines_signals(),
        )


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
    return [*sorted(library), *system, *_DEVICES]


def die_with_parent(parent: int) -> None:
    """Be killed when process `parent` ends, and end now if it has already."""
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prepare(readable: Iterable[str] = ()) -> Confinement:
    """Get ready to confine processes forked from this one; all may read `readable` too. Raises OSError.

    What all of them lose and this one does not need either goes here, for whatever a process does right after the
    fork it pays for with copies of pages.
    """
    os.environ.clear()
    os.chdir("/")
    os.umask(0o077)
    for kind, value in _LIMITS_OF_ALL:
        _limit(kind, value)
    libc.prctl(_PR_SET_DUMPABLE, 0)
    if os.geteuid() == 0:
        for capability in range(64):
            libc.prctl(_PR_CAPBSET_DROP, capability)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    paths = (*readable_paths(), *readable)
    return Confinement(
        readable=paths,
        ruleset=_out_of_the_way(landlock.ruleset(paths)) if landlock.abi() else None,
        filters=not seccomp.missing(),
        uid=user.choose(),
        address_space=pages * resource.getpagesize(),
    )


def confine(limits: Limits, prepared: Confinement, jail: Jail = PLAIN) -> None:
    """Confine this process for good; what the kernel lacks is left out. Raises OSError when a step fails."""
    if jail.directory is not None:
        # Before the change of user: the way to the directory need not be open to that one.
        os.chdir(jail.directory)
    _set_limits(limits, prepared, jail)
    ruleset, system_calls = _ruleset(prepared, jail), prepared.system_calls(jail)
    _drop_privileges(prepared.uid)
    if jail == PLAIN:
        # No core file whatever core_pattern says, no tracing. The change of user may have undone it, and a new
        # program is in any case.
        libc.prctl(_PR_SET_DUMPABLE, 0)
    if ruleset is not None:
        landlock.restrict_self(ruleset)
    if system_calls is not None:
        system_calls.install()


def escapes() -> list[str]:
    """What a confined process can still do and should not; empty when all doors are shut."""
    doors = {
        "read /etc/passwd": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "write to /tmp": _make_and_remove_a_file,
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


def _make_and_remove_a_file() -> None:
    path = f"/tmp/sandbox-escape-{os.getpid()}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(path)


def _ruleset(prepared: Confinement, jail: Jail) -> int | None:
    if prepared.ruleset is None or jail == PLAIN:
        return prepared.ruleset
    os.close(prepared.ruleset)
    own = [jail.directory] if jail.directory else []
    readable, changeable, executable = [*prepared.readable, *jail.readable, *own], ["/dev/null"], []
    if jail.changes:
        changeable += own
    if jail.programs is not None:
        executable = [*jail.programs, *(path for pattern in _LOADERS for path in glob.glob(pattern))]
    return landlock.ruleset(readable, changeable, executable)


def _out_of_the_way(descriptor: int) -> int:
    """The same at a number above all that a new process is given."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(descriptor)
    return moved


def _set_limits(limits: Limits, prepared: Confinement, jail: Jail) -> None:
    cpu = math.ceil(limits.wall_s) + 1
    memory = limits.memory_mb * 2**20
    for kind, value in (
        (resource.RLIMIT_DATA, memory) if jail.reserves else (resource.RLIMIT_AS, prepared.address_space + memory),
        (resource.RLIMIT_CPU, cpu),
        # A little over, so that the host sees the sum above the limit and says so.
        (resource.RLIMIT_FSIZE, (limits.disk_mb + 1) * 2**20 if jail.changes else 0),
        (resource.RLIMIT_NOFILE, 64),
        *_process_limit(limits, prepared, jail),
    ):
        _limit(kind, value)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def _process_limit(limits: Limits, prepared: Confinement, jail: Jail) -> list[tuple[int, int]]:
    """The kernel counts all processes of a user: of one who has others too, the host must do the counting."""
    if jail.processes:
        return [(resource.RLIMIT_NPROC, limits.processes)] if user.has_no_others(prepared.uid) else []
    # After a change of user, a limit of 0 would keep it from becoming another program as well.
    return [(resource.RLIMIT_NPROC, 0 if jail.programs is None else 1)]


def _drop_privileges(uid: int | None) -> None:
    answer = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if answer < 0:
        raise OSError(-answer, f"no_new_privs refused: {os.strerror(-answer)}")
    if uid is not None:
        user.become(uid)
    libc.drop_capabilities()


def _fork_and_end() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
