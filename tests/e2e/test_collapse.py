"""A learning rate that wrecks the tiny model: the run stops with its last good policy, or goes back and on, gentler."""

import pytest
from local_run import finish, records

WRECKED = {
    "name": "wrecked",
    "model": {"path": "char", "layers": 1, "width": 64},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 30, "sft_size": 70}],
    "sft": {"epochs": 20, "learning_rate": 5.0e-3, "batch_size": 32, "validation_fraction": 0},
    "rollout": {"prompts_per_round": 32, "samples_per_prompt": 8, "max_new_tokens": 6, "batch_size": 256},
    "update": {"preset": "grpo", "steps": 6, "learning_rate": 3.0e-2},
    "evaluate": {"samples": 8, "k": [1]},
    "runtime": {"threads": 1},
}


@pytest.mark.slow
def test_a_collapse_stops_the_run_with_the_last_good_policy(tmp_path, monkeypatch):
    config = WRECKED | {"rounds": 3, "collapse": {"action": "stop"}}
    status, output = finish(tmp_path / "home", config, "--no-mlflow")
    assert status == 0, output
    found = {record.title: record for record in records(tmp_path / "home", monkeypatch)}

    for round in (2, 3):
        for stage in ("rollout", "execute", "reward", "logprob", "update"):
            assert found[f"round {round} - {stage}"].skipped
    assert not found["round 1 - update"].skipped
    good = found["sft"].outputs["policy"]
    assert {found[f"round {round} - update"].outputs["updated_policy"] for round in (1, 2, 3)} == {good}
    before, after = (found[f"evaluate - {label}"] for label in ("before", "after"))
    assert not after.skipped
    assert after.metrics["pass@1"] == before.metrics["pass@1"], "the same policy, drawn from with the same numbers"

    said = " ".join(output.split())
    assert "stopped after round 1, rounds 2 to 3 left out" in said
    assert "round 1: stopped: kl " in said
    report = (tmp_path / "home" / "runs" / "latest" / "report.html").read_text()
    assert "stopped after round 1" in report
    assert "x its baseline" in report


@pytest.mark.slow
def test_a_rollback_goes_on_from_the_last_good_policy_with_a_smaller_learning_rate(tmp_path, monkeypatch):
    config = WRECKED | {"rounds": 2, "collapse": {"action": "rollback", "lr_factor": 0.02}}
    status, output = finish(tmp_path / "home", config, "--no-mlflow")
    assert status == 0, output
    found = {record.title: record for record in records(tmp_path / "home", monkeypatch)}

    first, second = (found[f"round {round} - update"] for round in (1, 2))
    assert first.outputs["updated_policy"] == found["sft"].outputs["policy"]
    assert first.outputs["updated_trainer_state"] == found["sft"].outputs["trainer_state"]
    assert not second.skipped
    assert second.outputs["updated_policy"] != first.outputs["updated_policy"]
    assert {row["lr"] for row in first.series} == {3.0e-2}
    assert [row["lr"] for row in second.series] == [pytest.approx(6.0e-4)] * 6
    assert [row["step"] for row in second.series] == [1, 2, 3, 4, 5, 6], "the steps of round 1 were undone"
    rewards = [found[f"round {round} - reward"].metrics["reward/mean"] for round in (1, 2)]
    assert rewards[1] == pytest.approx(rewards[0], abs=0.1), "round 2 draws from the policy of the cold start"
    assert "round 1: rolled back: kl " in " ".join(output.split())
