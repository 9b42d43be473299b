"""Which user confined processes become, where we may choose: one of a zygote's own, that owns nothing else.

Its files, signals and process count are then apart from everybody's, other sandboxes' included.
"""

import os
import random

_NOBODY = 65534
# By CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID we can become another user, end its processes, and
# remove its files.
_NEEDED = sum(1 << capability for capability in (0, 1, 3, 5, 6, 7))


def choose() -> int | None:
    """A user that nobody else is, or nobody; None when we cannot change, or could not clean up afterwards.

    Without a change a root process stays root in name, without any capability and behind Landlock.
    """
    if os.geteuid() != 0 or _capabilities() & _NEEDED != _NEEDED:
        return None
    draw = random.SystemRandom().randrange
    # A user namespace may know only the lower numbers.
    for uid in (draw(1 << 20, 1 << 30), draw(20_000, 60_000), _NOBODY):
        if _works(uid):
            return uid
    return None


def become(uid: int) -> None:
    """Be that user and its group alone. Raises OSError."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def has_no_others(uid: int | None) -> bool:
    """Whether all processes of that user are of one zygote."""
    return uid is not None and uid != _NOBODY


def _works(uid: int) -> bool:
    """Whether we can become that user, and it can read Python's library."""
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            os.close(os.open(os.__file__, os.O_RDONLY))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _capabilities() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
