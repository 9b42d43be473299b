"""The whole pipeline on a tiny model: KFP's local runner, SeaweedFS, MLflow; and it must really learn."""

import pytest
from local_run import finish, records

TINY = {
    "name": "tiny",
    "rounds": 3,
    "model": {"path": "char", "layers": 2, "width": 64},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 30, "sft_size": 70}],
    "sft": {"epochs": 40, "learning_rate": 3.0e-3, "batch_size": 32, "patience": 40, "validation_fraction": 0},
    "rollout": {"prompts_per_round": 32, "samples_per_prompt": 8, "max_new_tokens": 4},
    "update": {"preset": "grpo", "steps": 4, "learning_rate": 1.0e-3},
    "evaluate": {"samples": 8, "k": [1, 8]},
    "runtime": {"threads": 1},
}


@pytest.mark.slow
def test_the_pipeline_learns_on_the_tiny_model(tmp_path, monkeypatch):
    home = tmp_path / "home"
    status, output = finish(home, TINY)
    assert status == 0, output
    found = {record.title: record for record in records(home, monkeypatch)}
    before, after = (found[f"evaluate - {label}"].metrics["pass@1"] for label in ("before", "after"))
    assert after > before + 0.1, (before, after)
    assert (home / "runs" / "latest" / "report.html").stat().st_size > 10_000
    assert (home / "mlflow.db").exists()
