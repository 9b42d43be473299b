import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "trl_side_by_side.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


def test_our_half_runs_a_whole_round_and_reports_every_phase(tmp_path):
    file = tmp_path / "figures.json"
    small = ["--small", "--one-process", "--threads", "1", "--prompts", "2", "--samples", "4", "--new-tokens", "7"]
    done = run("--sides", "burnish", "--repeats", "1", *small, "--json", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    figures = report["medians"]["burnish"]
    phases = ("generation", "old logprobs", "reference logprobs", "update")
    assert all(figures[phase] > 0 for phase in phases)
    assert abs(figures["total"] - sum(figures[phase] for phase in phases)) < 1e-9
    assert figures["total as run"] == figures["total"]
    assert figures["peak_mb"] > 100
    assert all(line in done.stdout for line in ("logprobs + update", "peak memory, MB", "start, load, save"))
    # Nothing ended a completion early, and the stages really trained on the two groups.
    (measured,) = report["runs"]
    assert {length for _, length in measured["lengths"]} == {7}
    update = measured["stages"]["update"]["metrics"]
    assert update["tokens"] == 2 * 4 * 7
    assert update["steps_skipped"] == 0
    assert update["kl"] > 0


def test_an_environment_without_trl_is_one_clear_line(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = run("--trl-python", str(python))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {python} cannot import trl; make an environment with docs/performance.md and give its Python as "
        "--trl-python, or measure one side with --sides burnish"
    ]
