"""PPO through all stages and the store, in one process: the policy learns, and so does the critic beside it."""

import importlib.util
from pathlib import Path

import pytest
from test_learning import TINY, two_habits

from burnish.contracts.loading import parse_config
from burnish.store import open_store

ROUNDS = 3
PPO = {"preset": "ppo", "steps": 8, "learning_rate": 1.0e-3, "warmup_steps": 8, "critic": {"learning_rate": 1.0e-3}}


def in_process():
    """benchmarks/in_process.py; its folder stays off the path, where its files would hide packages."""
    path = Path(__file__).parents[2] / "benchmarks" / "in_process.py"
    spec = importlib.util.spec_from_file_location("in_process", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ppo_learns_on_the_tiny_model_and_its_critic_learns_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    two_habits(tmp_path / "habits.jsonl")
    sft = TINY["sft"] | {"data": str(tmp_path / "habits.jsonl")}
    found = {}
    config = parse_config(TINY | {"rounds": ROUNDS, "sft": sft, "update": PPO})
    run = in_process().InProcessRun(config, tmp_path / "run", "ppo", ROUNDS)
    run.run(lambda record: found.update({record.title: record}))

    before, after = (found[f"evaluate - {label}"].metrics["pass@1"] for label in ("before", "after"))
    assert after > before + 0.1, (before, after)
    rewards = [found[f"round {number} - reward"].metrics["reward/mean"] for number in range(1, ROUNDS + 1)]
    assert rewards[-1] > rewards[0] + 0.2, rewards

    updates = [found[f"round {number} - update"] for number in range(1, ROUNDS + 1)]
    foretold = [update.metrics["explained_variance"] for update in updates]
    assert foretold[0] == pytest.approx(0.0, abs=1e-3)
    assert foretold[1] > 0.05, "a round must teach the critic something about the returns"
    values = [update.metrics["value_mean"] for update in updates]
    assert values[0] == 0.0 < values[1] < values[2], "values follow the rising returns"
    assert len({update.outputs["updated_critic"] for update in updates}) == ROUNDS
    assert not open_store().get_manifest(found["sft"].outputs["critic"]).blobs
