"""A run that is killed again and again ends where the uninterrupted one ends."""

import pytest
from local_run import finish, kill_when, policy_blobs, records, start

SMALL = {
    "name": "small",
    "rounds": 1,
    "model": {"path": "char", "layers": 1, "width": 32},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 30, "eval_size": 10, "sft_size": 30}],
    "sft": {"epochs": 2, "learning_rate": 3.0e-3},
    "rollout": {"prompts_per_round": 8, "samples_per_prompt": 4, "max_new_tokens": 4},
    "update": {"steps": 2, "learning_rate": 1.0e-3},
    "evaluate": {"samples": 2, "k": [1, 2]},
    "runtime": {"threads": 1},
}


def kill_at(home, line):
    """Start the run and kill it without mercy when `line` shows in its log."""
    log = home / "runs" / "latest" / "run.log"
    before = log.stat().st_size if log.exists() else 0
    kill_when(start(home, SMALL, "--no-mlflow"), lambda: log.exists() and line in log.read_text()[before:])


@pytest.mark.slow
def test_a_run_killed_at_three_stages_gives_the_uninterrupted_weights(tmp_path, monkeypatch):
    for line in ("sft: started", "round 1 - rollout: started", "round 1 - update: started"):
        kill_at(tmp_path / "killed", line)
    status, output = finish(tmp_path / "killed", SMALL, "--no-mlflow")
    assert status == 0, output
    status, output = finish(tmp_path / "whole", SMALL, "--no-mlflow")
    assert status == 0, output

    killed = records(tmp_path / "killed", monkeypatch)
    whole = records(tmp_path / "whole", monkeypatch)
    assert {record.title for record in killed if record.cached} >= {"sft", "round 1 - rollout"}
    assert not [record for record in whole if record.cached]
    assert policy_blobs(tmp_path / "killed", killed, monkeypatch) == policy_blobs(
        tmp_path / "whole", whole, monkeypatch
    )
