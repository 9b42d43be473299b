"""What a stage's processes take while it runs: CPU cores, resident memory and every GPU, a row every few seconds;
and what its pod had asked for.

It reads /proc and asks nvidia-smi, so light stages need no package for it and a machine without a GPU pays nothing.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

from burnish.contracts.cost import RESOURCES_VARIABLE
from burnish.contracts.errors import ConfigError

INTERVAL_SECONDS = 5.0
MAX_ROWS = 120
_GPU_FIGURES = {
    "utilization.gpu": "utilization_percentage",
    "memory.used": "memory_usage_mb",
    "power.draw": "power_usage_watts",
}


class LoadSampler:
    """Samples from a thread while the block runs; one last row at its end, so that even a short stage has one.

    `rows`: `time` (Unix), `cpu_cores` (mean since the row before; processes that ended in between count up to then
    only), `memory_mb` (resident, shared pages once a process), `gpu_<n>_utilization_percentage`,
    `gpu_<n>_memory_usage_mb`, `gpu_<n>_power_usage_watts` (of the whole GPU).
    """

    def __init__(self, interval: float = INTERVAL_SECONDS, max_rows: int = MAX_ROWS) -> None:
        """Beyond `max_rows` every second row goes and `interval` doubles: long stages stay small."""
        self.rows: list[dict[str, float]] = []
        self._interval = interval
        self._max_rows = max_rows
        self._smi = shutil.which("nvidia-smi")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="load-sampler")
        self._seconds: dict[tuple[int, int], float] = {}
        self._moment = 0.0

    def __enter__(self) -> "LoadSampler":
        self._moment = time.monotonic()
        self._seconds = {process: seconds for process, (seconds, _) in own_processes().items()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if not self.rows or time.monotonic() - self._moment > self._interval / 2:
            self._take()

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            self._take()
            if len(self.rows) >= self._max_rows:
                self.rows = self.rows[1::2]
                self._interval *= 2

    def _take(self) -> None:
        now = time.monotonic()
        processes = own_processes()
        used = sum(max(0.0, seconds - self._seconds.get(process, 0.0)) for process, (seconds, _) in processes.items())
        row = {
            "time": time.time(),
            "cpu_cores": used / max(now - self._moment, 0.01),
            "memory_mb": sum(memory for _, memory in processes.values()),
        }
        self._seconds = {process: seconds for process, (seconds, _) in processes.items()}
        self._moment = now
        self.rows.append({key: round(value, 3) for key, value in (row | self._gpus()).items()})

    def _gpus(self) -> dict[str, float]:
        if not self._smi:
            return {}
        command = [self._smi, f"--query-gpu=index,{','.join(_GPU_FIGURES)}", "--format=csv,noheader,nounits"]
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            # A driver that does not answer now will not answer later; the stage goes on without these figures.
            self._smi = None
            return {}
        return parse_gpus(text)


def asked_resources() -> dict[str, float]:
    """What the placement says that this pod asked for, which the pod itself cannot see. Raises ConfigError."""
    text = os.environ.get(RESOURCES_VARIABLE, "")
    try:
        return {str(name): float(amount) for name, amount in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        example = '{"cpu": 4}'
        raise ConfigError(f"{RESOURCES_VARIABLE} is {text!r}; set it to JSON such as {example}, or unset it") from None


def parse_gpus(text: str) -> dict[str, float]:
    """Figures from nvidia-smi's CSV, a line a GPU; what a GPU does not measure (`[N/A]`) is left out."""
    found = {}
    for line in text.splitlines():
        index, *values = (part.strip() for part in line.split(","))
        for name, value in zip(_GPU_FIGURES.values(), values, strict=False):
            if value.replace(".", "", 1).isdigit():
                found[f"gpu_{index}_{name}"] = float(value)
    return found


def own_processes() -> dict[tuple[int, int], tuple[float, float]]:
    """(CPU seconds, resident MB) of this process and its descendants, by (pid, start time)."""
    ticks, page_mb = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE") / 2**20
    known: dict[int, tuple[int, int, float, float]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command in parentheses may hold spaces, so fields count from behind it (proc_pid_stat(5), field 3).
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds = (int(fields[11]) + int(fields[12])) / ticks
        known[int(entry.parent.name)] = (int(fields[1]), int(fields[19]), seconds, int(fields[21]) * page_mb)
    children: dict[int, list[int]] = {}
    for pid, (parent, *_) in known.items():
        children.setdefault(parent, []).append(pid)
    mine, found = [os.getpid()], {}
    while mine:
        pid = mine.pop()
        if pid in known:
            _, started, seconds, memory = known[pid]
            found[pid, started] = (seconds, memory)
            mine += children.get(pid, [])
    return found
