"""The whole pipeline on a tiny model: KFP's local runner, SeaweedFS, MLflow; and it must really learn.

The cold start imitates two habits in equal parts, answering and stopping, and answering and rambling on. Only the
first is rewarded, so reinforcement must move the policy from the one to the other, also on prompts it never saw.
"""

import json
import sqlite3

import pytest
from local_run import finish, records

from burnish.contracts.loading import parse_config
from burnish.tasks import load_task

TINY = {
    "name": "tiny",
    "rounds": 4,
    "model": {"path": "char", "layers": 1, "width": 64},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 30, "sft_size": 70}],
    "sft": {
        "epochs": 60,
        "learning_rate": 5.0e-3,
        "weight_decay": 1.0,
        "batch_size": 32,
        "validation_fraction": 0,
    },
    "rollout": {"prompts_per_round": 64, "samples_per_prompt": 8, "max_new_tokens": 6, "batch_size": 256},
    "update": {"preset": "grpo", "steps": 8, "learning_rate": 1.0e-3, "warmup_steps": 8, "kl": {"coef": 0}},
    "evaluate": {"samples": 16, "k": [1, 8]},
    "runtime": {"threads": 1},
}


def two_habits(path):
    """Every demonstration of the task twice: as it is, and with words after the answer."""
    config = parse_config(TINY)
    shown = [prompt for prompt in load_task(config.tasks[0], config.seed) if prompt.split == "sft"]
    rows = [
        {"prompt": prompt.text, "response": f"{prompt.demonstration}{ending}"}
        for prompt in shown
        for ending in ("", " or")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_the_pipeline_learns_on_the_tiny_model(tmp_path, monkeypatch):
    home = tmp_path / "home"
    two_habits(tmp_path / "habits.jsonl")
    config = TINY | {"sft": TINY["sft"] | {"data": str(tmp_path / "habits.jsonl")}}
    status, output = finish(home, config)
    assert status == 0, output
    found = {record.title: record for record in records(home, monkeypatch)}
    before, after = (found[f"evaluate - {label}"].metrics["pass@1"] for label in ("before", "after"))
    assert 0.2 < before < 0.6, "the cold start must leave something to learn, and something to learn from"
    assert after > before + 0.1, (before, after)
    rewards = [found[f"round {round} - reward"].metrics["reward/mean"] for round in (1, 4)]
    assert rewards[1] > rewards[0] + 0.1, rewards

    report = (home / "runs" / "latest" / "report.html").read_text()
    assert f"{after:.3f}"[:4] in report or f"{100 * after:.1f}" in report, "the page must show the held-out figure"
    with sqlite3.connect(home / "mlflow.db") as database:
        steps = database.execute("select m.step from metrics m where m.key = 'reward/mean' order by m.step").fetchall()
    assert [step for (step,) in steps] == [1, 2, 3, 4]
