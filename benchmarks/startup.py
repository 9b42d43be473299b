"""What a stage costs before its `run` begins: a fresh Python, KFP's executor, the store's client, the stage's imports.

Usage: python benchmarks/startup.py [--repeats 5] [--json FILE]. Wall time is the least of the repeats; CPU time, which
other work on the machine disturbs less, is given beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from burnish.contracts.stages import STAGES

# What a pod of the stage imports: KFP's entry point and ours. KFP sets this variable for its tasks.
_TASK = "import kfp.dsl.executor_main, burnish.stages.component, burnish.store.s3"
_ENVIRONMENT = {"_KFP_RUNTIME": "true"}

_MODELS = "import torch; from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel"
_BASELINES = {"python": "pass", "harness": _TASK, "torch": "import torch", "torch + transformers": _MODELS}


def measure(code: str, repeats: int) -> dict[str, float]:
    """Least wall and CPU seconds of `repeats` fresh processes that run `code`."""
    wall, cpu = [], []
    for _ in range(repeats):
        before = os.times()
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **_ENVIRONMENT})
        wall.append(time.perf_counter() - started)
        after = os.times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return {"wall_s": min(wall), "cpu_s": min(cpu)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes per line")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), help="which stages; default: all")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    given = parser.parse_args()

    figures = {name: measure(code, given.repeats) for name, code in _BASELINES.items()}
    for name in given.stages:
        figures[name] = measure(f"{_TASK}, burnish.stages.{name}", given.repeats)
    print(f"{'process':<22}{'wall s':>8}{'CPU s':>8}{'x python':>10}{'x torch':>9}{'x torch+transformers':>22}")
    for name, figure in figures.items():
        ratios = [figure["wall_s"] / figures[base]["wall_s"] for base in ("python", "torch", "torch + transformers")]
        kind = "" if name in _BASELINES else " (torch)" if STAGES[name].torch else " (light)"
        print(
            f"{name + kind:<22}{figure['wall_s']:>8.2f}{figure['cpu_s']:>8.2f}"
            f"{ratios[0]:>10.1f}{ratios[1]:>9.2f}{ratios[2]:>22.2f}"
        )
    if given.json:
        given.json.write_text(json.dumps({"load": os.getloadavg(), "figures": figures}, indent=2), "utf-8")


if __name__ == "__main__":
    main()
