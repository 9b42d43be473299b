"""Progress of long work: a plain line every few seconds, the same in a pod's log and under `burnish run`."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

ItemT = TypeVar("ItemT")

# `burnish run` looks for this mark in a stage's output to draw its live line.
MARK = "▸ "
INTERVAL_VARIABLE = "BURNISH_PROGRESS_SECONDS"


def announce(line: str) -> None:
    """Say one thing that people follow a run by."""
    print(f"{MARK}{line}", flush=True)


def progress(items: Iterable[ItemT], total: int, title: str, unit: str) -> Iterator[ItemT]:
    """Pass `items` on; every 10 s (BURNISH_PROGRESS_SECONDS) say how many are done and how long the rest takes."""
    interval = float(os.environ.get(INTERVAL_VARIABLE, "10"))
    started = said = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said >= interval and count < total:
            said = now
            left = (now - started) / count * (total - count)
            announce(f"{title}: {count}/{total} {unit}, about {left:.0f} s left")


def process_age() -> float:
    """Seconds since this process started, as the kernel saw it: what Python's start and imports cost."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))
