"""The work that both sides of the comparison do, as data: model, prompts, group size, lengths, optimizer settings.

It imports nothing but the standard library, because the other side's environment need not have this package.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# CPU time of one thread is what other work on a shared machine disturbs least; wall time is what people wait for.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Workload:
    """One optimizer step of GRPO, made so that nothing but the implementation decides how long it takes."""

    policy: str
    """Folder of the model; its end-of-sequence token is one that the head cannot produce (see model_folders.py)."""
    reference: str
    """Folder of the frozen reference: other weights, so that nobody may take one forward pass for both."""
    prompts: list[str]
    """User turns, rendered with the model's chat template; raw text where the model has none."""
    chat: bool
    samples_per_prompt: int
    new_tokens: int
    """Exact length of every completion, since nothing ends one earlier."""
    threads: int
    clock: str
    """A key of CLOCKS."""
    seed: int
    learning_rate: float = 1e-6
    kl_coef: float = 0.01
    clip: float = 0.2
    temperature: float = 1.0
    max_grad_norm: float = 1.0

    @property
    def completions(self) -> int:
        return len(self.prompts) * self.samples_per_prompt

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> "Workload":
        return cls(**json.loads(path.read_text("utf-8")))


def reward_of(sample: int) -> float:
    """Reward of the sample with this place in its group: half of every group is good, so no advantage is 0."""
    return float(sample % 2)


def questions(count: int, padding_words: int) -> list[str]:
    """`count` different questions; `padding_words` of context in front make the prompts longer."""
    words = ["apples", "pears", "plums", "figs", "dates", "limes"]
    context = " ".join(words[index % len(words)] for index in range(padding_words))
    return [f"{context} What is {index + 3} + {2 * index + 5}? Explain.".strip() for index in range(count)]


def lifetime(clock: str) -> float:
    """Seconds of this process so far, Python's own start included, on a clock of CLOCKS."""
    if clock == "cpu":
        return time.process_time()
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory_mb() -> float:
    """Largest resident set of this process so far. (getrusage would start from the parent's.)"""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def report(result: dict[str, Any]) -> None:
    """Hand a side's figures to the parent: the last line of standard output."""
    print(json.dumps(result), flush=True)
