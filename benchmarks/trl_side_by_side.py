"""One optimizer step of GRPO by TRL and by Burnish: same model, prompts, lengths and settings, turn about in one run.

Usage: python benchmarks/trl_side_by_side.py --trl-python PATH [--small] [--repeats 3] [--json FILE]. How the sides are
kept equal, and what the lines of the table mean: docs/performance.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import burnish_side
from workload import CLOCKS, Workload, questions

# TRL's default trades time for memory by activation checkpointing; `trl` is the faster one without. `burnish-unshared`
# runs every completion's prompt again, which shows what sharing it is worth.
SIDES = ("trl", "trl-checkpointing", "burnish", "burnish-unshared")
_HERE = Path(__file__).parent


def main() -> None:
    given = _arguments()
    if any(side.startswith("trl") for side in given.sides):
        _require_trl(given.trl_python)
    os.environ |= {"OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory(prefix="burnish-side-by-side-", dir=given.scratch) as name:
        scratch = Path(name)
        model = "char" if given.small else "smollm2-135m-instruct"
        _make_models(model, scratch, given.one_process)
        work = Workload(
            policy=str(scratch / "policy"),
            reference=str(scratch / "reference"),
            prompts=questions(given.prompts, given.padding_words),
            chat=not given.small,
            samples_per_prompt=given.samples,
            new_tokens=given.new_tokens,
            threads=given.threads,
            clock=given.clock,
            seed=0,
        )
        runs = []
        for repeat in range(given.repeats):
            for side in given.sides:
                folder = scratch / f"{repeat}-{side}"
                folder.mkdir()
                load = os.getloadavg()[0]
                run = {"side": side, "repeat": repeat, "load_before": load, **_measure(side, work, folder, given)}
                runs.append(run)
                print(f"{side}, repeat {repeat + 1}: {_one_line(run)}", flush=True)
    _check_equal_work(work, runs)
    medians = {side: _medians([run for run in runs if run["side"] == side]) for side in given.sides}
    ratios = _ratios(runs, given.sides)
    print(_table(medians, ratios))
    if given.json:
        machine = {"cores": os.cpu_count(), "system": platform.platform(), "preload": os.environ.get("LD_PRELOAD")}
        report = {"options": vars(given), "machine": machine, "medians": medians, "ratios": ratios, "runs": runs}
        given.json.write_text(json.dumps(report, indent=2, default=str), "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", default=sys.executable, help="Python of the environment that has trl")
    parser.add_argument("--small", action="store_true", help="a tiny character-level model: the harness, in a minute")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES[:3]))
    parser.add_argument("--repeats", type=int, default=3, help="rounds of turns")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps in a TRL process; its first is included")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--new-tokens", type=int, default=64, help="exact length of each completion")
    parser.add_argument("--padding-words", type=int, default=0, help="words of context in front of each question")
    parser.add_argument("--trl-micro-batch", type=int, default=8, help="per_device_train_batch_size")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: CPU seconds, for a machine that is shared"
    )
    parser.add_argument("--one-process", action="store_true", help="Burnish's stages in this process; quicker")
    parser.add_argument("--scratch", type=Path, help="where models and stores are put meanwhile")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    return parser.parse_args()


def _require_trl(python: str) -> None:
    found = subprocess.run([python, "-c", "import trl, datasets"], capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(
            f"error: {python} cannot import trl; make an environment with docs/performance.md and give its Python "
            "as --trl-python, or measure one side with --sides burnish"
        )


def _make_models(model: str, scratch: Path, one_process: bool) -> None:
    if one_process:
        import model_folders

        model_folders.make(model, scratch)
    else:
        subprocess.run([sys.executable, str(_HERE / "model_folders.py"), model, str(scratch)], check=True)


def _measure(side: str, work: Workload, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    if side.startswith("burnish"):
        share = side != "burnish-unshared"
        return burnish_side.run_round(work, folder, share_prompt=share, one_process=given.one_process)
    path = folder / "workload.json"
    work.save(path)
    checkpointing = str(int(side == "trl-checkpointing"))
    command = [given.trl_python, str(_HERE / "trl_side.py"), str(path)]
    command += [str(given.trl_micro_batch), checkpointing, str(given.steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {side} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _check_equal_work(work: Workload, runs: list[dict[str, Any]]) -> None:
    """Every run must have had the same prompts in tokens, and completions of exactly the asked-for length."""
    lengths = {json.dumps(run["lengths"]) for run in runs}
    if len(lengths) != 1 or any(length != work.new_tokens for _, length in runs[0]["lengths"]):
        sys.exit(f"error: the sides did not do the same work: (prompt, completion) lengths {sorted(lengths)}")


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    steps = [_sums(step, skips_old=run["side"].startswith("trl")) for run in runs for step in run["steps"]]
    figures = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    return figures | {name: statistics.median(run[name] for run in runs) for name in ("overhead", "peak_mb")}


def _sums(step: dict[str, float], *, skips_old: bool) -> dict[str, float]:
    """Rows of the table. TRL leaves the old logprobs out when it takes one optimizer step a generation, Burnish never
    does: `total` has the same passes on both sides, `total as run` has what each does when left alone.
    """
    old = step["old_logprob"]
    logprob = old + step["ref_logprob"]
    train = logprob + step["update"]
    total = step["generation"] + train + step.get("other", 0.0)
    return {
        "generation": step["generation"],
        "old logprobs": old,
        "reference logprobs": step["ref_logprob"],
        "update": step["update"],
        "logprobs + update": train,
        "total": total,
        "total as run": total - old if skips_old else total,
    }


def _ratios(runs: list[dict[str, Any]], sides: list[str]) -> dict[str, dict[str, float]]:
    """Figures of the other sides over Burnish's, medians over the repeats: above 1, Burnish needs less.

    Each is divided by the Burnish run of its own repeat, so that what else the machine did hits both.
    """
    by_repeat = {(run["side"], run["repeat"]): _medians([run]) for run in runs}
    repeats = sorted({run["repeat"] for run in runs})
    ratios = {}
    for side in sides:
        if side != "burnish" and "burnish" in sides:
            pairs = [(by_repeat[side, repeat], by_repeat["burnish", repeat]) for repeat in repeats]
            ratios[side] = {
                name: statistics.median(theirs[name] / ours[name] for theirs, ours in pairs) for name in pairs[0][0]
            }
    return ratios


def _one_line(run: dict[str, Any]) -> str:
    figures = _medians([run])
    return ", ".join(
        f"{name} {figures[name]:.1f}" for name in ("generation", "logprobs + update", "total", "overhead", "peak_mb")
    )


def _table(medians: dict[str, dict[str, float]], ratios: dict[str, dict[str, float]]) -> str:
    sides = list(medians)
    lines = [
        "".join(
            [
                f"{'medians, seconds':<34}",
                *(f"{side:>20}" for side in sides),
                *(f"{side + ' / burnish':>28}" for side in ratios),
            ]
        )
    ]
    for name in medians[sides[0]]:
        title = {"peak_mb": "peak memory, MB", "overhead": "start, load, save"}.get(name, name)
        cells = [f"{medians[side][name]:>20.2f}" for side in sides]
        cells += [f"{ratios[side][name]:>28.2f}" for side in ratios]
        lines.append("".join([f"{title:<34}", *cells]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
