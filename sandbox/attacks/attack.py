"""What an attack is: a program, what it wants, and the layer that is meant to stop it.

Every attack is bounded, so that it does little harm even where nothing stops it. The verdict `passed` always means
that it succeeded: no honest program could pass its tests.
"""

import platform
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.languages import LANGUAGES
from sandbox.limits import Limits

Layer = Literal[
    "clean start",
    "system-call filter",
    "Landlock",
    "resource limits",
    "dropped privileges",
    "clock in the host",
    "output cap",
    "size cap",
    "comparison in the host",
    "end of the group",
    "interpreter",
    "machine",
]

LAYERS: dict[Layer, str] = {
    "clean start": "the process comes from an interpreter that never held a secret, without environment or descriptors",
    "system-call filter": "seccomp: what is not on the list fails, so most of the kernel is out of reach",
    "Landlock": "no file but Python's own can be opened, none can be written outside the work directory",
    "resource limits": "address space, processes, descriptors, file size, core files, locked memory",
    "dropped privileges": "no capability, no new privilege, not dumpable, a user of its own where we were root",
    "clock in the host": "at the wall-clock limit everything is killed from outside",
    "output cap": "what is written goes through pipes that the host reads up to a limit",
    "size cap": "a program that is too large is not run at all",
    "comparison in the host": "what a program says is only compared; expected values and tests are elsewhere",
    "end of the group": "a program's processes end with it",
    "interpreter": "Python itself refuses",
    "machine": "what it wants is not on this machine: a newer kernel's call, a device, a disk that can be written to",
}
"""What each layer is, for people."""

DEFAULT_LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64)
ONE_SECOND = Limits(wall_s=1, memory_mb=256, output_kb=64)


@dataclass(frozen=True)
class Attack:
    """One program that tries one thing."""

    name: str
    success: str
    """What it would look like if it worked."""
    layer: Layer
    """What is expected to stop it first."""
    program: str
    """`@secret@` and the like, here or in the tests, stand for what `scene.Scene.fill` puts there."""
    tests: tuple[dict[str, Any], ...] = ({"expected": "breached"},)
    """As in a specification; only an attack that worked can pass them."""
    language: str = "python"
    limits: Limits = DEFAULT_LIMITS
    entry_point: str | None = "attack"
    spec: dict[str, Any] = field(default_factory=dict)
    """More of the specification: files, checker, context."""
    machine: str | None = None
    """The only architecture it makes sense on."""
    succeeds_without: tuple[str, ...] = ()
    """Guards that have to go for it to work; a test takes them away and looks. Empty: not shown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "program", textwrap.dedent(self.program).lstrip("\n"))

    def missing_here(self) -> str | None:
        """Why it cannot be tried on this machine, or None when it can."""
        if self.machine not in {None, platform.machine()}:
            return f"only on {self.machine}"
        language = LANGUAGES[self.language]
        if language is not None and language.path is None:
            return f"{language.tool} is not here"
        return None


@dataclass(frozen=True)
class Family:
    """Attacks with one aim."""

    name: str
    aim: str
    attacks: tuple[Attack, ...]


def system_call(name: str, success: str, x86: int, arm: int, arguments: str = "0, 0, 0, 0, 0", **rest: Any) -> Attack:
    """An attack that makes one system call by number; it succeeds when the call gets past the filter."""
    program = f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        number = {{"x86_64": {x86}, "aarch64": {arm}}}[os.uname().machine]
        def attack():
            result = libc.syscall(number, {arguments})
            error = ctypes.get_errno() if result < 0 else 0
            if error in (1, 38):
                raise OSError(error, os.strerror(error))
            return "breached"
    """
    return Attack(name, success, "system-call filter", program, **rest)
