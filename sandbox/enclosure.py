"""A second jail around the zygote and all it starts, where the host allows one: bubblewrap or nsjail.

Namespaces of its own for processes, network and mounts, around what holds by itself already; a program costs no more.
"""

import shutil
import tempfile
from collections.abc import Callable

_TOOLS = {"bubblewrap": "bwrap", "nsjail": "nsjail"}
ENCLOSURES = ("none", *_TOOLS)


def prefix(name: str, descriptor: int) -> list[str]:
    """What to put before a command that needs the open `descriptor` and TMPDIR.

    Raises FileNotFoundError, and ValueError for a name that is none of `ENCLOSURES`.
    """
    if name == "none":
        return []
    if name not in _TOOLS:
        raise ValueError(f"enclosure is {name!r}; use one of {', '.join(ENCLOSURES)}")
    tool = shutil.which(_TOOLS[name])
    if tool is None:
        raise FileNotFoundError(f"enclosure {name}: {_TOOLS[name]} is not here: install {name}")
    make: Callable[[str, int, str], list[str]] = _bubblewrap if name == "bubblewrap" else _nsjail
    return make(tool, descriptor, tempfile.gettempdir())


def _bubblewrap(tool: str, descriptor: int, place: str) -> list[str]:
    """It leaves descriptors open by itself."""
    mounts = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--bind", place, place]
    return [tool, "--unshare-all", "--die-with-parent", *mounts, "--"]


def _nsjail(tool: str, descriptor: int, place: str) -> list[str]:
    """Its own limits of time and size are off: each program has narrower ones."""
    limits = ["--time_limit", "0", "--disable_rlimits", "--keep_env"]
    return [tool, "-Mo", "--quiet", "--chroot", "/", "--bindmount", place, "--pass_fd", str(descriptor), *limits, "--"]
