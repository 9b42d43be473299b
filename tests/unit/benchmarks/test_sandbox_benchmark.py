import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "sandbox_speed.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


def test_every_side_that_is_here_runs_the_program_and_is_compared_with_bare_python(tmp_path):
    file = tmp_path / "figures.json"
    done = run("--seconds", "0.3", "--turns", "1", "--python", sys.executable, "--json", str(file))
    assert done.returncode == 0, done.stderr
    (turn,) = json.loads(file.read_text())["turns"]
    assert {"bare python", "sandbox", "sandbox service"} <= turn.keys()
    assert all(side["n"] > 0 and 0 < side["p50"] <= side["p99"] for side in turn.values())
    assert "| bare python |" in done.stdout


def test_the_soak_holds_memory_and_descriptors():
    done = run("--soak", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "flat"
