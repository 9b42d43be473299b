"""A run whose rollouts and executions are shared by pods is the run of one pod, also after a kill."""

import json

import pytest
from local_run import finish, kill_when, records, start

from burnish.contracts.parquet import read_records
from burnish.contracts.records import Execution, Reward, Rollout
from burnish.store import open_store
from burnish.store.seaweed import start_seaweed

WHOLE = {
    "name": "whole",
    "rounds": 1,
    "model": {"path": "char", "layers": 1, "width": 32},
    "tasks": [
        {"source": "sums", "params": {"style": "raw"}, "train_size": 20, "eval_size": 4, "sft_size": 30},
    ],
    "sft": {"epochs": 2, "learning_rate": 3.0e-3},
    "rollout": {"prompts_per_round": 9, "samples_per_prompt": 4, "max_new_tokens": 6},
    "update": {"steps": 1, "learning_rate": 1.0e-3},
    "evaluate": {"samples": 1, "k": [1], "skip": ["before", "after"]},
    "runtime": {"threads": 1},
}
SHARDED = WHOLE | {"name": "sharded", "rollout": WHOLE["rollout"] | {"shards": 3}}


@pytest.fixture
def code(tmp_path):
    """A task whose answers are run, in the raw text that the tiny model continues."""
    rows = [
        {"prompt": f"def f(x): return x + {k}\n#", "tests": [{"args": [1], "expected": 1 + k}], "entry_point": "f"}
        for k in range(10)
    ]
    path = tmp_path / "code.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": f"jsonl:{path}", "name": "code", "params": {"style": "raw"}, "train_size": 8, "eval_size": 2}


def kill_at(home, config, line):
    process = start(home, config, "--no-mlflow")
    kill_when(process, lambda: any(line in log.read_text() for log in home.glob("runs/*/run.log")))


def rows_of(home, found, monkeypatch, folder):
    """Rollouts, executions and rewards of the run's round."""
    wanted = {"rollouts": Rollout, "executions": Execution, "rewards": Reward}
    rows = {}
    with start_seaweed(home) as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        store = open_store()
        for record in found:
            for output in wanted.keys() & record.outputs.keys() if not record.shard else ():
                store.fetch(store.get_manifest(record.outputs[output]), folder / output)
                rows[output] = read_records(folder / output / f"{output}.parquet", wanted[output])
    return rows


@pytest.mark.slow
def test_a_killed_run_in_shards_repeats_one_shard_and_gives_the_rows_of_a_single_pod(tmp_path, code, monkeypatch):
    whole_config, config = ({**given, "tasks": [*given["tasks"], code]} for given in (WHOLE, SHARDED))
    home = tmp_path / "home"
    status, output = finish(home, whole_config, "--no-mlflow")
    assert status == 0, output
    single = records(home, monkeypatch)
    kill_at(home, config, "round 1 - rollout 3/3: started")
    status, output = finish(home, config, "--no-mlflow")
    assert status == 0, output

    found = records(home, monkeypatch)
    shards = {record.title: record for record in found if record.shard}
    assert set(shards) == {f"round 1 - {stage} {k}/3" for stage in ("rollout", "execute") for k in (1, 2, 3)}
    assert any(record.cached for record in shards.values())
    assert not shards["round 1 - rollout 3/3"].cached

    sharded = rows_of(home, found, monkeypatch, tmp_path / "rows" / "sharded")
    whole = rows_of(home, single, monkeypatch, tmp_path / "rows" / "whole")
    for one, other in zip(sharded["rollouts"], whole["rollouts"], strict=True):
        assert (one.sample_id, one.group_id, one.seed, one.text) == (
            other.sample_id, other.group_id, other.seed, other.text,
        )  # fmt: skip
        assert one.response_ids == other.response_ids
        assert one.rollout_logprobs == pytest.approx(other.rollout_logprobs, abs=1e-4)
    assert [(row.sample_id, row.verdicts) for row in sharded["executions"]] == [
        (row.sample_id, row.verdicts) for row in whole["executions"]
    ]
    assert sharded["executions"], "otherwise this test says nothing about them"
    assert [(row.sample_id, row.reward) for row in sharded["rewards"]] == [
        (row.sample_id, row.reward) for row in whole["rewards"]
    ]
    measured = {record.title: record.metrics for record in found}, {record.title: record.metrics for record in single}
    for stage in ("rollout", "execute"):
        gathered, alone = (metrics[f"round 1 - {stage}"] for metrics in measured)
        assert gathered.keys() - alone.keys() == {"shards", "shards/slowest_s", "shards/fastest_s"}
        for name in alone.keys() - {"seconds", "tokens_per_second", "seconds/mean", "seconds/max", "probe_gap"}:
            assert gathered[name] == alone[name], name
