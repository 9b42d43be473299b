"""A whole run, from validate to report, whose object store breaks one request in twelve."""

import random
import subprocess
import sys

import pytest
import yaml
from faulty_proxy import Answer, CutConnection

from burnish.store.verify import inspect

CONFIG = {
    "name": "noisy",
    "rounds": 1,
    "model": {"path": "char", "layers": 1, "width": 32},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 30, "eval_size": 10, "sft_size": 30}],
    "rollout": {"prompts_per_round": 4, "samples_per_prompt": 2, "max_new_tokens": 4},
    "evaluate": {"samples": 1, "k": [1]},
    "runtime": {"threads": 1},
}


@pytest.mark.slow
def test_a_run_whose_store_breaks_often_ends_well_with_a_sound_store(place, tmp_path, monkeypatch) -> None:
    dice = random.Random(7)
    broken = []

    def noise(point, request):
        if dice.random() > 1 / 36:  # three points a request
            return None
        broken.append(point)
        if point == "arrived" and dice.random() < 0.5:
            return Answer(503)
        if point == "executed" and request.method == "GET" and request.answer.body:
            place.faults.truncate.append(len(request.answer.body) // 2)
            return None
        raise CutConnection

    place.faults.at = noise
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "burnish.cli.main", "run", str(tmp_path / "config.yaml"), "--no-mlflow"]
    run = subprocess.run(
        [*command, "--home", str(tmp_path / "home")], capture_output=True, text=True, timeout=540, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(broken) > 5
    place.faults.at = lambda point, request: None
    store = place.open()
    [run_id] = store.run_ids()
    records = store.run_records(run_id)
    assert {record.stage for record in records} >= {"validate", "sft", "rollout", "reward", "update", "report"}
    assert [record.error for record in records if record.error] == []
    assert [check for check in inspect(store).run() if check.fault] == []
