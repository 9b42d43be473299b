"""What the processes below another one amount to, from /proc; it asks them nothing, so they cannot lie."""

import contextlib
import os
import stat
from dataclasses import dataclass


@dataclass
class Usage:
    """Of several processes together."""

    tasks: int = 0
    """Processes and threads."""
    memory: int = 0
    """Bytes that are theirs alone or shared among them; what they share with the files on disk does not count."""
    deleted: int = 0
    """Bytes of files they hold open that have no name any more, as far as we may look."""


def children(pid: int) -> list[int]:
    """The living children of process `pid` and the dead it has not waited for; none when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def usage_below(pid: int, most_tasks: int) -> Usage:
    """Of all descendants of `pid`; stops looking at more than `most_tasks`."""
    usage, waiting = Usage(), children(pid)
    while waiting and usage.tasks <= most_tasks:
        child = waiting.pop()
        with contextlib.suppress(OSError):
            _add(usage, child)
        waiting += children(child)
    return usage


def _add(usage: Usage, pid: int) -> None:
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in {"RssAnon", "RssShmem"}:
                usage.memory += int(value.split()[0]) * 1024
            elif name == "Threads":
                usage.tasks += int(value)
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(folder):
            with contextlib.suppress(OSError):
                found = os.stat(f"{folder}/{descriptor}")
                if found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                    usage.deleted += found.st_blocks * 512
