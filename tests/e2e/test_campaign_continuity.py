"""A campaign of 2 + 2 rounds ends, bit by bit, where a run of 4 rounds ends; real stages, one process."""

import json

import pytest
from test_ppo import in_process

from burnish.campaign.controller import drive
from burnish.campaign.log import CampaignLog
from burnish.campaign.plan import chunk_overrides
from burnish.contracts.loading import parse_config, with_overrides
from burnish.store import open_store

# Everything that a round leaves to the next has something to say: optimizer, schedules, a KL controller, a critic that
# warms up, the data's order, the detector's history, a reference.
CONFIG = {
    "name": "chunks",
    "rounds": 2,
    "model": {"path": "char", "layers": 1, "width": 32},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 30, "eval_size": 4, "sft_size": 30}],
    "sft": {"epochs": 20, "learning_rate": 3.0e-3},
    "rollout": {"prompts_per_round": 8, "samples_per_prompt": 4, "max_new_tokens": 4},
    "update": {
        "preset": "ppo",
        "steps": 2,
        "learning_rate": 1.0e-3,
        "schedule": "cosine",
        "warmup_steps": 2,
        "kl": {"coef": 0.05, "schedule": "adaptive", "target": 1.0e-4, "horizon": 100},
        "critic": {"warmup_rounds": 1, "learning_rate": 1.0e-3},
    },
    "evaluate": {"samples": 2, "k": [1, 2]},
    "runtime": {"threads": 1},
    "campaign": {"rounds": 4, "on_collapse": "continue"},
}


class InProcessLauncher:
    """Runs chunks here, and counts the stages that had something to do."""

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.worked = []

    def start(self, chunk):
        return ""

    def wait(self, chunk):
        config = with_overrides(self.config, chunk_overrides(chunk, self.config))
        run = in_process().InProcessRun(config, self.folder / chunk.run_id, chunk.run_id, chunk.rounds)
        run.run(lambda record: record.cached or self.worked.append((chunk.number, record.title)))


def last_blobs(store, run_id, round):
    """sha256 of every file that `round` left to the next, and what the detector remembers."""
    (update,) = [record for record in store.run_records(run_id) if record.title == f"round {round} - update"]
    return {
        (name, blob.path): blob.sha256
        for name, digest in update.outputs.items()
        for blob in store.get_manifest(digest).blobs
        # It names what to go back to by manifests, whose lineage differs; what it remembers is compared by itself.
        if name != "updated_verdict"
    }


def history(store, run_id, round, scratch):
    (update,) = [record for record in store.run_records(run_id) if record.title == f"round {round} - update"]
    store.fetch(store.get_manifest(update.outputs["updated_verdict"]), scratch)
    return json.loads((scratch / "verdict.json").read_text())["history"]


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Opens a store of its own by name: what one run remembers must not help the other."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))

    def opened(name):
        monkeypatch.setenv("BURNISH_STORE", str(tmp_path / name))
        return open_store()

    return opened


def test_two_chunks_of_two_rounds_are_a_run_of_four(stores, tmp_path):
    config = parse_config(CONFIG)
    store = stores("chunks")
    launcher = InProcessLauncher(config, tmp_path / "runs")
    campaign = drive(store, config, CampaignLog(store, "chunks", "me"), launcher)
    assert campaign.status == "finished"
    first, second = campaign.chunks
    assert [found.round for found in second.outcome.rounds] == [3, 4]
    assert first.outcome.evaluation == second.start.evaluation
    in_chunks = last_blobs(store, second.run_id, 4)
    remembered = history(store, second.run_id, 4, tmp_path / "a")

    whole = stores("whole")
    four = config.model_copy(update={"rounds": 4})
    in_process().InProcessRun(four, tmp_path / "whole-run", "whole", 4).run(lambda record: None)
    assert in_chunks == last_blobs(whole, "whole", 4)
    assert remembered == history(whole, "whole", 4, tmp_path / "b")
    after = {record.title: record.metrics for record in whole.run_records("whole")}["evaluate - after"]
    assert second.outcome.after == {name: after[name] for name in second.outcome.after}
