import json

from mlflow import MlflowClient

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.loading import parse_config

CONFIG = parse_config(
    {
        "seed": 7,
        "tasks": [{"source": "jsonl:data/a.jsonl", "params": {"max_operand": 9}}],
        "track": {"experiment": "tests"},
    }
)


def validated(digest: str, metrics: dict[str, float]) -> StageRecord:
    return StageRecord(
        run_id="r", stage="validate", key=digest, outputs={"prompts": digest}, metrics=metrics,
        started_at=100.0, finished_at=110.0,
    )  # fmt: skip


def inputs_of(database, run):
    inputs = MlflowClient(database).get_run(run).inputs.dataset_inputs
    return {found.dataset.name: (found.dataset, {tag.key: tag.value for tag in found.tags}) for found in inputs}


def test_each_task_and_split_is_a_dataset_of_the_run(send, database):
    record = validated("a" * 64, {"prompts/jsonl:data/a.jsonl/train": 256.0, "prompts/jsonl:data/a.jsonl/eval": 64.0})
    found = send([record], "datasets", CONFIG)
    assert found.problem is None
    inputs = inputs_of(database, found.run)
    assert set(inputs) == {"jsonl:data/a.jsonl/train", "jsonl:data/a.jsonl/eval"}
    dataset, tags = inputs["jsonl:data/a.jsonl/eval"]
    assert tags == {"mlflow.data.context": "eval"}
    assert dataset.digest == "a" * 32
    assert json.loads(dataset.profile) == {"prompts": 64}
    source = json.loads(dataset.source)
    assert (source["source"], source["params"], source["seed"]) == ("jsonl:data/a.jsonl", {"max_operand": 9}, 7)
    assert source["artifact"] == "a" * 64
    # Not as curves too: MLflow's compare view would draw the first of them, and it says nothing.
    assert not [name for name in MlflowClient(database).get_run(found.run).data.metrics if "prompts" in name]


def test_datasets_are_logged_once_and_again_when_the_prompts_changed(send, database):
    run = send([validated("a" * 64, {"prompts/sums/train": 8.0})], "changing", CONFIG).run
    send([validated("a" * 64, {"prompts/sums/train": 8.0})], "changing", CONFIG)
    client = MlflowClient(database)
    assert len(client.get_run(run).inputs.dataset_inputs) == 1
    send([validated("b" * 64, {"prompts/sums/train": 9.0})], "changing", CONFIG)
    digests = {found.dataset.digest for found in client.get_run(run).inputs.dataset_inputs}
    assert digests == {"a" * 32, "b" * 32}


def test_a_break_before_the_mark_logs_the_datasets_once_all_the_same(send, database, monkeypatch):
    record = validated("c" * 64, {"prompts/sums/train": 8.0})
    with monkeypatch.context() as patch:
        patch.setattr("burnish.track.sync._send", lambda *_: (_ for _ in ()).throw(OSError("connection lost")))
        assert send([record], "break", CONFIG).left == 1
    found = send([record], "break", CONFIG)
    assert (found.sent, found.problem) == (1, None)
    assert len(MlflowClient(database).get_run(found.run).inputs.dataset_inputs) == 1
