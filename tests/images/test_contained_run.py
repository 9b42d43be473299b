"""The whole DAG through the built images, as on the strictest cluster: a random user, a read-only root, no network.

Skipped without a Docker daemon or where `make images` has not built every stage.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from burnish.contracts.stages import STAGES
from burnish.store import open_store

CONFIG = {
    "name": "contained",
    "rounds": 2,
    "model": {"path": "char", "layers": 1, "width": 32},
    "sft": {"epochs": 1, "batch_size": 8, "validation_fraction": 0},
    "rollout": {"prompts_per_round": 6, "samples_per_prompt": 2, "max_new_tokens": 12},
    "update": {"preset": "ppo", "steps": 1, "filters": {"zero_variance": False}},
    "evaluate": {"samples": 1, "k": [1]},
    "runtime": {"threads": 1},
}
SUMS = {"source": "sums", "params": {"style": "raw"}, "train_size": 8, "eval_size": 2, "sft_size": 8}
# A program for the sandbox and a sum for math-verify, each ten times.
ROWS = [
    row
    for number in range(10)
    for row in (
        {"prompt": f"# print {number}\n", "tests": [{"stdin": "", "stdout": f"{number}\n"}]},
        {"prompt": f"1 + {number} = ", "answer": str(1 + number), "verifier": "math"},
    )
]


@pytest.fixture
def built(daemon, image_name):
    docker = pytest.importorskip("docker")
    for stage in STAGES:
        try:
            daemon.images.get(image_name(stage))
        except docker.errors.ImageNotFound:
            pytest.skip(f"{image_name(stage)} is not built: make images")


@pytest.mark.usefixtures("built")
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "shards"), [("hf", 2), ("vllm", 1)])
def test_every_stage_works_as_a_random_user_with_a_read_only_root(
    tmp_path, monkeypatch, repository_and_tag, engine, shards
):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    rows = {"source": f"jsonl:{tmp_path / 'rows.jsonl'}", "params": {"style": "raw"}, "train_size": 16, "eval_size": 4}
    config = CONFIG | {"tasks": [SUMS, rows], "rollout": CONFIG["rollout"] | {"engine": engine, "shards": shards}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("contained_run.py"), tmp_path, *repository_and_tag],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        env={name: value for name, value in os.environ.items() if not name.startswith(("BURNISH_", "MLFLOW_"))},
    )  # fmt: skip
    assert done.returncode == 0, [line for line in done.stdout.splitlines() if "rror" in line][:20]
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    records = open_store(str(tmp_path / "store")).run_records("contained")
    assert [record.title for record in records if record.error] == []
    assert {record.stage for record in records} == set(STAGES)
    assert sum(record.stage == "update" for record in records) == CONFIG["rounds"]
    verdicts = [name for record in records if record.stage == "execute" for name in record.metrics]
    assert verdicts, "programs must have run"
