"""The languages a program may be written in, and what running each of them takes."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.confine import Jail
from sandbox.limits import Limits

_SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
_COMPILER = (*_SYSTEM, "/usr/lib", "/usr/libexec", "/usr/local/lib")
_HEADERS = ("/usr/include", "/usr/local/include", "/etc/ld.so.cache")
# Compilers need more than the programs they make.
_COMPILER_MEMORY_MB = 2048


@dataclass(frozen=True)
class Language:
    """How a program is made ready and started, in a directory that holds its source."""

    file: str
    """Name of the source."""
    tool: str
    """The program that must be there."""
    package: str
    """What brings it, in words."""
    compile: tuple[str, ...] = ()
    """Arguments of the tool that make `./main`; none: the tool runs the source itself."""
    run: tuple[str, ...] = ()
    """Arguments of the tool that run the source."""
    readable: tuple[str, ...] = ()
    """Files and folders that the tool reads when it starts."""
    processes: bool = False
    """Its programs have children or threads."""
    all_programs: bool = False
    """They may start the system's programs."""
    reserves: bool = False
    """See `Jail`."""
    out_of_memory: str = "out of memory"
    """What its runtime writes when memory is short."""

    @property
    def path(self) -> str | None:
        """The tool, or None when it is not there."""
        found = shutil.which(self.tool)
        return os.path.realpath(found) if found else None

    def compile_argv(self) -> list[str]:
        return [str(self.path), *self.compile]

    def run_argv(self, limits: Limits) -> list[str]:
        if self.compile:
            return ["./main"]
        return [str(self.path), *(part.format(memory_mb=limits.memory_mb) for part in self.run)]

    def compile_jail(self, directory: str) -> Jail:
        return Jail(directory, changes=True, readable=_HEADERS, programs=_COMPILER, processes=True)

    def run_jail(self, directory: str, changes: bool) -> Jail:
        programs = (directory,) if self.compile else (str(self.path),)
        return Jail(
            directory,
            changes=changes,
            readable=("/etc/ld.so.cache", *self.readable),
            programs=programs + (_SYSTEM if self.all_programs else ()),
            processes=self.processes,
            reserves=self.reserves,
        )


LANGUAGES: Mapping[str, Language | None] = {
    # Runs in the process that was forked for it.
    "python": None,
    "bash": Language(
        "main.sh",
        "bash",
        "bash",
        run=("--noprofile", "--norc", "main.sh"),
        processes=True,
        all_programs=True,
        out_of_memory="annot allocate",
    ),
    "c": Language(
        "main.c",
        "gcc",
        "gcc and libc6-dev",
        compile=("-O2", "-std=gnu17", "-pipe", "-o", "main", "main.c", "-lm"),
    ),
    "cpp": Language(
        "main.cpp",
        "g++",
        "g++",
        compile=("-O2", "-std=gnu++20", "-pipe", "-o", "main", "main.cpp"),
        out_of_memory="std::bad_alloc",
    ),
    "javascript": Language(
        "main.js",
        "node",
        "nodejs",
        run=("--max-old-space-size={memory_mb}", "main.js"),
        # Debian's node has parts of its library there, and its OpenSSL reads this whatever OPENSSL_CONF says.
        readable=("/usr/share/nodejs", "/etc/ssl/openssl.cnf"),
        processes=True,
        reserves=True,
        out_of_memory="out of memory",
    ),
}


def missing(name: str) -> str | None:
    """What to install for programs in that language, or None when it is there."""
    language = LANGUAGES[name]
    if language is None or language.path is not None:
        return None
    return f"{language.tool} is not here: install {language.package}"


def environment(directory: str) -> dict[str, str]:
    """All that a program of another language finds in its environment."""
    search = {"PATH": ":".join(reversed(_SYSTEM)), "LANG": "C.UTF-8"}
    # Node will not start when it finds a configuration that it cannot read.
    return search | {"HOME": directory, "TMPDIR": directory, "OPENSSL_CONF": "/dev/null"}


def compile_limits(limits: Limits) -> Limits:
    """What the compiler may use."""
    return Limits(
        wall_s=limits.compile_s,
        memory_mb=max(limits.memory_mb, _COMPILER_MEMORY_MB),
        output_kb=limits.output_kb,
        disk_mb=max(limits.disk_mb, 64),
    )


def table() -> str:
    """A line for each language: where its tool is, or what to install."""
    return "\n".join(
        f"{name:<12}{missing(name) or (language.path if language else sys.executable)}"
        for name, language in LANGUAGES.items()
    )
