"""What people see when something is wrong: one line that names it, a non-zero exit, nothing half-written."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from local_run import environment, finish, start

BASE = {
    "name": "broken",
    "rounds": 1,
    "model": {"path": "char", "layers": 1, "width": 32},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 30, "eval_size": 10, "sft_size": 30}],
    "rollout": {"prompts_per_round": 4, "samples_per_prompt": 2, "max_new_tokens": 4},
    "evaluate": {"samples": 1, "k": [1]},
    "runtime": {"threads": 1},
}


def errors_of(output):
    return [line for line in output.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"path": "no such folder!"}}, ["model.path", "'no such folder!'"]),
        ({"tasks": [{"source": "reasoning_gym:chain_sums", "sft_size": 4}]}, ["chain_sums", "chain_sum"]),
    ],
)
def test_a_wrong_setting_fails_in_the_first_stage_with_one_line(tmp_path, change, words):
    status, output = finish(tmp_path / "home", BASE | change, "--no-mlflow")
    assert status != 0
    assert "Traceback" not in output
    (last,) = errors_of(output)
    assert last.startswith("error: validate: ")
    for word in words:
        assert word in last
    assert (tmp_path / "home" / "runs" / "latest" / "report.html").exists(), "the report runs after a failure too"


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output = finish(tmp_path / "home", BASE, "--no-mlflow", "--s3-port", str(port))
    assert status != 0
    (line,) = errors_of(output)
    assert str(port) in line
    assert "Traceback" not in output


def test_an_object_store_that_does_not_answer_is_named(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    settings = environment(home) | {
        "BURNISH_STORE": "s3://bucket",
        "BURNISH_S3_ENDPOINT": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "a-secret-that-must-not-show",
    }
    monkeypatch.setattr("local_run.environment", lambda _: settings)
    status, output = finish(home, BASE, "--no-mlflow")
    assert status != 0
    assert "http://127.0.0.1:9" in "".join(errors_of(output))
    assert "Traceback" not in output
    everything = output + "".join(path.read_text(errors="replace") for path in home.rglob("*.log"))
    assert "a-secret-that-must-not-show" not in everything


def test_a_killed_stage_is_named(tmp_path):
    home = tmp_path / "home"
    process = start(home, BASE, "--no-mlflow")
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "validate" in line and "done" in line:
                break
        os.kill(stage_process(home), signal.SIGKILL)
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    (line,) = errors_of("".join(lines) + rest)
    assert line.startswith("error: sft ended without a result (killed, or out of memory)")
    assert "the same command goes on from there" in line


def stage_process(home: Path) -> int:
    """Process of the stage that runs after validate, found by the pipeline root in its command line."""
    while True:
        found = subprocess.run(["pgrep", "-f", f"executor_main.*{home}.*/sft/"], capture_output=True, text=True)
        pids = [int(pid) for pid in found.stdout.split()]
        running = [pid for pid in pids if "python" in Path(f"/proc/{pid}/exe").resolve().name]
        if running:
            return running[0]
