"""Every preset on the same tiny task from the same cold start: a learning curve each, for docs/algorithms.md.

Usage: python benchmarks/preset_curves.py OUT [PRESET ...]; writes OUT/<preset>.svg and OUT/curves.json.
It compares nothing but behaviour: a character model of 60 thousand parameters ranks no algorithm.
"""

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from in_process import InProcessRun

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import parse_config
from burnish.contracts.presets import PRESETS
from burnish.tasks import load_task

ROUNDS = 12

TINY: dict[str, Any] = {
    "name": "curves",
    "seed": 0,
    "rounds": 1,
    "model": {"path": "char", "layers": 1, "width": 64},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 30, "sft_size": 70}],
    "sft": {"epochs": 60, "learning_rate": 5e-3, "weight_decay": 1.0, "batch_size": 32, "validation_fraction": 0},
    "rollout": {"prompts_per_round": 64, "samples_per_prompt": 8, "max_new_tokens": 6, "batch_size": 256},
    "update": {"steps": 4, "learning_rate": 1e-3, "warmup_steps": 4, "critic": {"learning_rate": 3e-3}},
    "evaluate": {"samples": 16, "k": [1]},
    "runtime": {"threads": 1, "processes": 1},
}


# Answers here have two tokens; VAPO's 0.05 is meant for thousands and would make lambda 0.
_OWN: dict[str, Any] = {"vapo": {"advantage": {"length_adaptive": 10.0}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("presets", nargs="*")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="burnish-curves-") as folder:
        os.environ["BURNISH_STORE"] = f"{folder}/store"
        os.environ["BURNISH_CACHE"] = f"{folder}/cache"
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for preset in given.presets or PRESETS:
            found[preset] = _curve(preset, Path(folder))
            (given.out / f"{preset}.svg").write_text(_svg(found[preset]["reward"]), "utf-8")
            print(f"{preset:24} {found[preset]['before']:.3f} -> {found[preset]['after']:.3f}", flush=True)
    (given.out / "curves.json").write_text(json.dumps(found, indent=1), "utf-8")


def _curve(preset: str, folder: Path) -> dict[str, Any]:
    habits = folder / "habits.jsonl"
    _two_habits(habits)
    tree = TINY | {
        "sft": TINY["sft"] | {"data": str(habits)},
        "update": TINY["update"] | {"preset": preset} | _OWN.get(preset, {}),
    }
    result: dict[str, Any] = {"reward": [], "update_s": 0.0}

    def note(record: StageRecord) -> None:
        if record.stage == "reward":
            result["reward"].append(record.metrics["reward/mean"])
        elif record.stage == "evaluate":
            result[record.label] = record.metrics["pass@1"]
        elif record.stage == "update":
            result["update_s"] += record.timings["compute"]

    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        InProcessRun(parse_config(tree), folder / preset, preset, ROUNDS).run(note)
    result["seconds"] = time.perf_counter() - started
    return result


def _two_habits(path: Path) -> None:
    """Answering and stopping, answering and rambling on: the second is what reinforcement has to take away."""
    config: RunConfig = parse_config(TINY)
    shown = [prompt for prompt in load_task(config.tasks[0], config.seed) if prompt.split == "sft"]
    rows = [
        {"prompt": prompt.text, "response": f"{prompt.demonstration}{ending}"}
        for prompt in shown
        for ending in ("", " or")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _svg(values: list[float]) -> str:
    """Training reward by round, 0 to 1, as a small drawing that needs no style sheet."""
    width, height, left, bottom = 320, 120, 30, 18

    def place(index: int, value: float) -> str:
        x = left + index * (width - left - 8) / max(len(values) - 1, 1)
        return f"{x:.1f},{8 + (1 - value) * (height - bottom - 8):.1f}"

    line = " ".join(place(index, value) for index, value in enumerate(values))
    grid = "".join(
        f'<line x1="{left}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{left - 5}" y="{y + 3.5:.1f}" text-anchor="end">{value:g}</text>'
        for value in (0, 0.5, 1)
        for y in [8 + (1 - value) * (height - bottom - 8)]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="10" fill="#555"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'{grid}<polyline points="{line}" fill="none" stroke="#2563a8" stroke-width="2"/>'
        f'<text x="{left}" y="{height - 4}">round 1</text>'
        f'<text x="{width - 8}" y="{height - 4}" text-anchor="end">round {len(values)}</text></svg>\n'
    )


if __name__ == "__main__":
    main()
