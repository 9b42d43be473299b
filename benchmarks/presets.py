"""Every preset on the quickstart's model and task at equal samples, and TRL's trainers where it has the algorithm.

Usage: python benchmarks/presets.py OUT.json [--trl-python PATH] [--rounds 2] [--sides grpo trl-grpo ...].
All sides start from the same cold-started policy, see the same prompts in the same order, and are measured on the
same held-out prompts by the same stage. Each side runs in a process of its own; results are kept as they come.
Seconds are of CPU time, which other work on the machine disturbs least, and hold all of a round, loads and saves too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from in_process import InProcessRun

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import load_config
from burnish.contracts.parquet import read_records
from burnish.contracts.presets import PRESETS
from burnish.contracts.records import Prompt
from burnish.stages.rollout import choose_prompts
from burnish.store import open_store

_QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
_TRL_SIDE = Path(__file__).with_name("trl_presets_side.py")
TRL_PRESETS = ("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo", "sapo")
_EXTRA = {
    "ppo": ["update.critic.learning_rate=1e-4"],
    # Answers have two or three tokens; VAPO's 0.05 is meant for thousands and would make lambda 0.
    "vapo": ["update.critic.learning_rate=1e-4", "update.advantage.length_adaptive=10"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trl-python", help="Python of the environment that has trl; without it no TRL side runs")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", type=Path, help="kept between calls, so that a second call goes on")
    parser.add_argument("--sides", nargs="*")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    scratch = given.scratch or Path(tempfile.mkdtemp(prefix="burnish-presets-"))
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ |= {"BURNISH_STORE": str(scratch / "store"), "BURNISH_CACHE": str(scratch / "cache")}
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(given.threads)}
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if given.side:
        print(json.dumps(_measure(given.side, scratch, given)), flush=True)
        return
    trl = [f"trl-{name}" for name in TRL_PRESETS] if given.trl_python else []
    found = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    for side in given.sides or [*PRESETS, *trl]:
        if side in found:
            continue
        started = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--side", side, "--scratch", str(scratch)],
                              stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
        if done.returncode:
            sys.exit(f"error: {side} failed")
        found[side] = json.loads(done.stdout.splitlines()[-1]) | {"process_s": time.perf_counter() - started}
        given.out.write_text(json.dumps(found, indent=1), "utf-8")
        print(f"{side:24} {found[side]['before']} -> {found[side]['after']}", flush=True)
    print(_table(found))


def _measure(side: str, scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    preset = side.removeprefix("trl-")
    overrides = [f"rounds={given.rounds}", f"runtime.threads={given.threads}", f"update.preset={preset}"]
    config = load_config(_QUICKSTART, overrides + _EXTRA.get(preset, []))
    result: dict[str, Any] = {"reward": [], "steps": given.rounds * config.update.steps}

    def note(record: StageRecord) -> None:
        if record.stage == "reward":
            result["reward"].append(record.metrics["reward/mean"])
        if record.stage == "evaluate":
            result[record.label] = {key: record.metrics[f"pass@1{key}"] for key in ("", "/low", "/high")}
        result["peak_mb"] = max(result.get("peak_mb", 0.0), record.peak_memory_mb or 0.0)

    run = InProcessRun(config, scratch / side, side, 0 if side.startswith("trl-") else given.rounds)
    if side.startswith("trl-"):
        run.start(note)
        _train_with_trl(preset, config, scratch / side, given, result)
    else:
        run.start(note)
        started = time.process_time()
        run.rounds_of(note)
        result["cpu_s"] = time.process_time() - started
    note(run.evaluate("after"))
    return result


def _train_with_trl(
    preset: str, config: RunConfig, folder: Path, given: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Let TRL train the cold-started policy; its result becomes the policy that `evaluate` reads."""
    store = open_store()
    for name in ("policy", "prompts"):
        manifest = Manifest.from_json((folder / f"{name}.json").read_bytes(), name)
        if not (folder / name).exists():
            store.fetch(manifest, folder / name)
    prompts = read_records(folder / "prompts" / "prompts.parquet", Prompt)
    rows = [
        {"prompt": prompt.messages, "answer": str(prompt.verifier["answer"])}
        for round in range(1, given.rounds + 1)
        for prompt in choose_prompts(
            prompts, config.tasks, per_round=config.rollout.prompts_per_round, round=round, seed=config.seed
        )
    ]
    work = {
        "preset": preset,
        "policy": str(folder / "policy"),
        "trained": str(folder / "trained"),
        "rows": rows,
        "rounds": given.rounds,
        "steps": config.update.steps,
        "samples": config.rollout.samples_per_prompt,
        "prompts": config.rollout.prompts_per_round,
        "new_tokens": config.rollout.max_new_tokens,
        "temperature": config.rollout.temperature,
        "learning_rate": config.update.learning_rate,
        "max_grad_norm": config.update.max_grad_norm,
        "kl_coef": config.update.kl.coef,
        "clip_low": config.update.loss.clip_low,
        "clip_high": config.update.loss.clip_high,
        "seed": config.seed,
        "threads": given.threads,
    }
    (folder / "work.json").write_text(json.dumps(work), "utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([given.trl_python, str(_TRL_SIDE), str(folder / "work.json")], env=environment,
                          stdout=subprocess.PIPE, text=True, check=False)  # fmt: skip
    if done.returncode:
        sys.exit(f"error: TRL's {preset} failed")
    result |= json.loads(done.stdout.splitlines()[-1])
    manifest = store.put_artifact(
        "policy", folder / "trained", lineage=Lineage(stage="trl"), counts={}, metadata={"policy_version": 1}
    )
    (folder / "policy.json").write_text(manifest.to_json(), "utf-8")


def _table(found: dict[str, Any]) -> str:
    lines = [
        "| preset | held-out pass@1 before | after | reward by round | CPU s/step | TRL: after | TRL: CPU s/step |"
    ]
    lines.append("|---|--:|--:|---|--:|--:|--:|")
    for name in PRESETS:
        if name not in found:
            continue
        ours, theirs = found[name], found.get(f"trl-{name}")
        cells = [name, _score(ours["before"]), _score(ours["after"])]
        cells += [" ".join(f"{value:.2f}" for value in ours["reward"]), f"{ours['cpu_s'] / ours['steps']:.1f}"]
        cells += [_score(theirs["after"]), f"{theirs['cpu_s'] / theirs['steps']:.1f}"] if theirs else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _score(score: dict[str, float]) -> str:
    return f"{score['']:.3f} [{score['/low']:.3f}, {score['/high']:.3f}]"


if __name__ == "__main__":
    main()
