import json
from types import SimpleNamespace

import pytest
from reward_inputs import prompt, rollout

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Execution, Prompt, Rollout
from burnish.stages.component import gather_component
from burnish.stages.entry import run_stage
from burnish.stages.gather import check_shards, gather, natural
from burnish.store import open_store

IDS = [(f"r1-g{group}", f"r1-g{group}-s{index}") for group in range(12) for index in range(2)]
CODE = prompt("code", kind="code", entry_point="f", tests=[{"args": [1], "expected": 1}])


def rows(ids=IDS):
    """Rollouts of these (group id, sample id), every third of them with right code."""
    texts = ("def f(x): return x", "def f(x): return 2", "nothing")
    return [rollout(texts[at % 3], sample_id, "code", group_id) for at, (group_id, sample_id) in enumerate(ids)]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.yaml").write_text("name: demo\nrollout: {shards: 3}\n")
    return open_store()


def artifact(store, tmp_path, kind, found, row_type, **metadata):
    folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    write_records(folder / f"{kind}.parquet", found, row_type)
    counts = {"prompts": {}, "executions": {"rows": len(found)}}.get(
        kind,
        {
            "samples": len(found),
            "groups": len({row.group_id for row in found}) if kind == "rollouts" else 0,
            "tokens": sum(len(row.response_ids) for row in found) if kind == "rollouts" else 0,
        },
    )
    return store.put_artifact(kind, folder, lineage=Lineage(stage="rollout", round=1), counts=counts, metadata=metadata)


def shard(store, tmp_path, text, found, **metadata):
    about = {"policy_version": 0, "shard_of": "abc"} | metadata
    return artifact(store, tmp_path, "rollouts", found, Rollout, shard=text, **about)


def thirds(store, tmp_path):
    parts = rows()
    return [
        shard(store, tmp_path, f"{index}/3", [row for row in parts if int(row.group_id[4:]) % 3 == index - 1])
        for index in (1, 2, 3)
    ]


def execute(store, tmp_path, part=""):
    """Run the execute stage on all rollouts as a component does; returns its record and its manifest."""
    inputs = {
        "rollouts": artifact(store, tmp_path, "rollouts", rows(), Rollout),
        "prompts": artifact(store, tmp_path, "prompts", [CODE], Prompt),
    }
    for name, manifest in inputs.items():
        (tmp_path / f"{name}.json").write_text(manifest.to_json())
    target = tmp_path / f"out{part.replace('/', '-')}.json"
    record = run_stage(
        "execute", config_path=str(tmp_path / "config.yaml"), run_id="run", round=1, shard=part,
        inputs={name: str(tmp_path / f"{name}.json") for name in inputs}, outputs={"executions": str(target)},
    )  # fmt: skip
    return record, Manifest.from_json(target.read_bytes(), "out")


def test_gathered_rollouts_are_the_artifact_that_one_pod_would_have_made(store, tmp_path):
    whole = artifact(store, tmp_path, "rollouts", rows(), Rollout, policy_version=0)
    record, gathered = gather("rollout", list(reversed(thirds(store, tmp_path))), store, "run")
    assert gathered == whole
    assert record.title == "round 1 - rollout"
    assert record.outputs == {"rollouts": whole.digest}
    assert record.metrics["samples"] == 24.0
    lengths = [len(row.response_ids) for row in rows()]
    assert record.metrics["response_length_mean"] == pytest.approx(sum(lengths) / len(lengths))


def test_shards_of_execution_give_the_executions_and_figures_of_one_pod(store, tmp_path):
    alone, whole = execute(store, tmp_path)
    parts = [execute(store, tmp_path, f"{index}/3")[1] for index in (1, 2, 3)]
    assert [part.metadata["shard"] for part in parts] == ["1/3", "2/3", "3/3"]
    record, gathered = gather("execute", parts, store, "run")

    def read(manifest, name):
        store.fetch(manifest, tmp_path / name)
        return read_records(tmp_path / name / "executions.parquet", Execution)

    assert [(row.sample_id, row.verdicts) for row in read(gathered, "gathered")] == [
        (row.sample_id, row.verdicts) for row in read(whole, "alone")
    ]
    for name in ("executions", "verdict/passed", "verdict/wrong", "degraded"):
        assert record.metrics[name] == alone.metrics[name]
    assert record.metrics["shards"] == 3.0
    assert record.metrics["shards/fastest_s"] <= record.metrics["shards/slowest_s"]
    titles = {found.title for found in store.run_records("run")}
    assert {"round 1 - execute", "round 1 - execute 1/3", "round 1 - execute 3/3"} <= titles


def test_a_finished_shard_is_remembered_and_another_is_not(store, tmp_path):
    first, _ = execute(store, tmp_path, "1/3")
    again, _ = execute(store, tmp_path, "1/3")
    other, _ = execute(store, tmp_path, "2/3")
    assert (first.cached, again.cached, other.cached) == (False, True, False)


def test_gathering_once_more_is_remembered(store, tmp_path):
    parts = thirds(store, tmp_path)
    first, gathered = gather("rollout", parts, store, "run")
    again, same = gather("rollout", parts[::-1], store, "run")
    assert (first.cached, again.cached, same) == (False, True, gathered)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts, make: parts[:2], "shard 3/3 is missing"),
        (lambda parts, make: [*parts, parts[0]], "shard 1/3 is there twice"),
        (lambda parts, make: [*parts[:2], make("3/4")], "shard 1/3 has a number of shards of 3, shard 3/4 has 4"),
        (lambda parts, make: [*parts[:2], make("3/3", policy_version=1)], "1/3 has policy_version 0, shard 3/3 has 1"),
        (
            lambda parts, make: [*parts[:2], make("3/3", shard_of="xyz")],
            "shard 3/3 has xyz; all must come from one run",
        ),
        (lambda parts, make: [], "there are no shards to gather"),
    ],
)
def test_shards_that_do_not_make_a_whole_are_refused(store, tmp_path, change, message):
    parts = change(thirds(store, tmp_path), lambda text, **about: shard(store, tmp_path, text, rows()[:2], **about))
    with pytest.raises(ContractError, match=message):
        gather("rollout", parts, store, "run")
    (record,) = store.run_records("run")
    assert message in record.error


def test_what_is_no_shard_is_refused(store, tmp_path):
    whole = artifact(store, tmp_path, "rollouts", rows(), Rollout, policy_version=0)
    with pytest.raises(ContractError, match=r"is no shard of rollouts"):
        check_shards("rollout", [whole])
    with pytest.raises(ContractError, match=r"is no shard of executions; it is of kind rollouts"):
        check_shards("execute", thirds(store, tmp_path))


def test_a_sample_in_two_shards_is_refused(store, tmp_path):
    parts = [shard(store, tmp_path, "1/2", rows()), shard(store, tmp_path, "2/2", rows()[4:6])]
    with pytest.raises(ContractError, match=r"sample r1-g2-s0 of shard \d/2 comes after r1-g2-s0 of shard"):
        gather("rollout", parts, store, "run")


def test_a_shard_that_lost_rows_is_refused(store, tmp_path):
    one, two, three = thirds(store, tmp_path)
    three = three.model_copy(update={"counts": three.counts | {"samples": 99}})
    with pytest.raises(ContractError, match="hold 24 samples, and their manifests say 115"):
        gather("rollout", [one, two, three], store, "run")


def test_without_a_single_sample_the_round_fails(store, tmp_path):
    with pytest.raises(StageError, match="all samples of all shards were aborted"):
        gather("rollout", [shard(store, tmp_path, f"{k}/2", []) for k in (1, 2)], store, "run")


def test_one_stopped_shard_stops_the_round(store, tmp_path):
    (tmp_path / "empty").mkdir()
    stopped = store.put_artifact(
        "rollouts", tmp_path / "empty", lineage=Lineage(stage="rollout", round=1), counts={},
        metadata={"stopped": True, "shard": "1/3", "shard_of": "abc"},
    )  # fmt: skip
    record, gathered = gather("rollout", [stopped, *thirds(store, tmp_path)[1:]], store, "run")
    assert gathered.metadata == {"stopped": True}
    assert gathered.blobs == []
    assert (record.skipped, record.metrics) == (True, {})


def test_the_component_takes_a_manifest_that_kfp_did_not_download_from_the_store(store, tmp_path):
    parts = thirds(store, tmp_path)
    artifacts = [
        SimpleNamespace(path=str(tmp_path / f"kfp-{at}"), metadata={"digest": part.digest, "policy_version": 0})
        for at, part in enumerate(parts)
    ]
    (tmp_path / "kfp-0").write_text(parts[0].to_json())
    whole = SimpleNamespace(path=str(tmp_path / "whole" / "manifest"), metadata={})
    logged = {}
    metrics = SimpleNamespace(log_metric=logged.__setitem__)
    gather_component("rollout", run_id="run", shards=artifacts, output=whole, metrics=metrics)
    assert json.loads((tmp_path / "whole" / "manifest").read_text())["counts"]["samples"] == 24
    assert (whole.metadata["samples"], whole.metadata["policy_version"]) == (24, 0)
    assert logged["samples"] == 24.0


def test_numbers_in_ids_sort_as_numbers():
    assert sorted(["r1-g10-s2", "r1-g9-s10", "r1-g9-s2", "r10-g0"], key=natural) == [
        "r1-g9-s2", "r1-g9-s10", "r1-g10-s2", "r10-g0",
    ]  # fmt: skip
