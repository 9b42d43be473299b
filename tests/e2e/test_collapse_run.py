"""A learning rate that wrecks the tiny model: the run stops with its last good policy, or goes back and on, gentler."""

import json
from pathlib import Path

import pytest
import yaml
from local_run import finish, records

from burnish.contracts.stages import STAGES
from burnish.stages.entry import run_stage

WRECKED = {
    "name": "wrecked",
    "rounds": 2,
    "model": {"path": "char", "layers": 1, "width": 64},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 20, "sft_size": 70}],
    "sft": {"epochs": 12, "learning_rate": 5.0e-3, "batch_size": 32, "validation_fraction": 0},
    "rollout": {"prompts_per_round": 24, "samples_per_prompt": 8, "max_new_tokens": 6, "batch_size": 192},
    "update": {"preset": "grpo", "steps": 6, "learning_rate": 3.0e-2},
    "evaluate": {"samples": 4, "k": [1]},
    "runtime": {"threads": 1},
}


@pytest.mark.slow
def test_a_collapse_stops_the_run_with_the_last_good_policy(tmp_path, monkeypatch):
    status, output = finish(tmp_path / "home", WRECKED | {"collapse": {"action": "stop"}}, "--no-mlflow")
    assert status == 0, output
    found = {record.title: record for record in records(tmp_path / "home", monkeypatch)}

    assert not found["round 1 - update"].skipped
    for stage in ("rollout", "execute", "reward", "logprob", "update"):
        assert found[f"round 2 - {stage}"].skipped
    good = found["sft"].outputs["policy"]
    assert {found[f"round {round} - update"].outputs["updated_policy"] for round in (1, 2)} == {good}
    before, after = (found[f"evaluate - {label}"] for label in ("before", "after"))
    assert not after.skipped
    assert after.metrics["pass@1"] == before.metrics["pass@1"], "the same policy, drawn from with the same numbers"

    said = " ".join(output.split())
    assert "stopped after round 1, round 2 left out" in said
    assert "round 1: stopped: kl " in said
    report = (tmp_path / "home" / "runs" / "latest" / "report.html").read_text()
    assert 'class="status stopped"' in report
    assert "stopped after round 1" in report
    assert "x its baseline" in report


@pytest.mark.slow
def test_a_rollback_goes_on_from_the_last_good_policy_with_a_smaller_learning_rate(tmp_path, monkeypatch):
    """The stages as the pipeline connects them, in this process."""
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(WRECKED | {"collapse": {"action": "rollback", "lr_factor": 0.02}})
    )
    there: dict[str, str] = {}

    def stage(name: str, round: int | None = None):
        outputs = {output: str(tmp_path / f"{name}-{round}-{output}.json") for output in STAGES[name].writes}
        record = run_stage(
            name,
            config_path=there.get("resolved", str(tmp_path / "config.yaml")),
            run_id="r",
            inputs={key: there[key] for key in STAGES[name].reads},
            outputs=outputs,
            round=round,
        )
        there.update({key.removeprefix("updated_"): path for key, path in outputs.items()})
        return record

    stage("validate")
    start = stage("sft")
    there["reference"] = there["policy"]
    updates, rewards = [], []
    for round in (1, 2):
        stage("rollout", round)
        stage("execute", round)
        rewards.append(stage("reward", round).metrics["reward/mean"])
        stage("logprob", round)
        updates.append(stage("update", round))

    first, second = updates
    for name in ("policy", "trainer_state", "critic"):
        assert first.outputs[f"updated_{name}"] == start.outputs[name]
    verdict = json.loads(Path(there["verdict"]).read_text())["metadata"]
    assert verdict["status"] == "ok", verdict
    assert second.outputs["updated_policy"] != start.outputs["policy"]
    assert {row["lr"] for row in first.series} == {3.0e-2}
    assert [row["lr"] for row in second.series] == [pytest.approx(6.0e-4)] * 6
    assert [row["step"] for row in second.series] == [1, 2, 3, 4, 5, 6], "the steps of round 1 were undone"
    assert rewards[1] == pytest.approx(rewards[0], abs=0.15), "round 2 draws from the policy of the cold start"
