"""A run that starts where an earlier one ended."""

import json

import pytest

from burnish.contracts.artifacts import Lineage
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.contracts.evaluation import Evaluation, Score
from burnish.contracts.loading import dump_config, parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt
from burnish.contracts.stages import STAGES
from burnish.contracts.verdict import Verdict
from burnish.stages.entry import _refer_to_start, run_stage
from burnish.store import open_store

KINDS = ("policy", "trainer_state", "critic", "verdict")


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def put(work, kind, name="first", metadata=None):
    folder = work / "given" / f"{kind}-{name}"
    folder.mkdir(parents=True)
    (folder / "file").write_text(name)
    store = open_store()
    return store.put_artifact(kind, folder, lineage=Lineage(stage="test"), counts={}, metadata=metadata or {})


def run(work, name, settings, given, label="", round=None):
    """The record of stage `name` with inputs `given`, those that are missing being empty."""
    stage = STAGES[name]
    for key, kind in stage.reads.items():
        manifest = given.get(key) or put(work, kind, f"empty-{key}")
        (work / f"{key}.json").write_text(manifest.to_json())
    (work / "config.yaml").write_text(dump_config(parse_config(settings)))
    return run_stage(
        name,
        config_path=str(work / "config.yaml"),
        run_id="later",
        label=label,
        round=round,
        inputs={key: str(work / f"{key}.json") for key in stage.reads},
        outputs={key: str(work / f"out-{key}.json") for key in stage.writes},
    )


def start(work, **changes):
    digests = {kind: put(work, kind).digest for kind in KINDS}
    return {"round": 4, **digests, **changes}


def test_sft_passes_on_what_the_earlier_run_ended_with(work):
    given = start(work)
    assert run(work, "sft", {"start": given}, {}).outputs == {kind: given[kind] for kind in KINDS}
    assert json.loads((work / "out-policy.json").read_text())["kind"] == "policy"


def test_sft_refuses_a_digest_of_something_else(work):
    given = start(work)
    with pytest.raises(ContractError, match=r"start\.critic is \w+: that is a policy; give the digest of a critic"):
        run(work, "sft", {"start": given | {"critic": given["policy"]}}, {})


def test_sft_refuses_a_verdict_that_stops(work):
    stopped = put(work, "verdict", "stop", Verdict(status="stop").metadata).digest
    with pytest.raises(ContractError, match=r"start\.verdict is \w+: that run was stopped by it"):
        run(work, "sft", {"start": start(work, verdict=stopped)}, {})


@pytest.mark.parametrize("missing", KINDS)
def test_policy_state_critic_and_verdict_go_together(missing):
    digests = {kind: "a" * 64 for kind in KINDS if kind != missing}
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        parse_config({"start": digests})


def test_rounds_count_on_in_records_and_titles(work):
    record = run(work, "execute", {"start": {"round": 4}}, empty_prompts(work), round=2)
    assert (record.round, record.title) == (6, "round 6 - execute")
    assert open_store().run_records("later")[0].title == "round 6 - execute"
    assert RunConfig(rounds=2, start={"round": 4}).last_round == 6


def empty_prompts(work):
    folder = work / "given" / "prompts"
    folder.mkdir(parents=True)
    write_records(folder / "prompts.parquet", [], Prompt)
    lineage = Lineage(stage="test")
    return {"prompts": open_store().put_artifact("prompts", folder, lineage=lineage, counts={}, metadata={})}


def evaluation(work):
    found = Evaluation(
        label="after", policy_version=4, temperature=1.0, samples=1, outcomes=[],
        scores=[Score(k=1, task=None, prompts=3, value=0.5, low=0.25, high=0.75)],
    )  # fmt: skip
    folder = work / "given" / "evaluation"
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(found.model_dump_json())
    return open_store().put_artifact("evaluation", folder, lineage=Lineage(stage="test"), counts={}, metadata={})


def test_an_evaluated_policy_is_not_evaluated_again(work):
    known = evaluation(work).digest
    record = run(work, "evaluate", {"start": start(work, evaluation=known)}, {}, label="before")
    assert record.outputs == {"evaluation": known}
    assert record.metrics["pass@1"] == 0.5
    assert record.metrics["pass@1/low"] == 0.25


@pytest.mark.parametrize("label", ["before", "after"])
def test_an_evaluation_can_be_left_out(work, label):
    record = run(work, "evaluate", {"evaluate": {"skip": [label]}}, {}, label=label)
    assert record.metrics == {}
    manifest = open_store().get_manifest(record.outputs["evaluation"])
    assert (manifest.blobs, manifest.metadata["left_out"]) == ([], True)


def test_the_reference_of_the_campaign_takes_the_place_of_the_runs_first_policy(work):
    store = open_store()
    original, first, other = (put(work, "policy", name) for name in ("original", "first", "other"))
    config = parse_config({"start": start_of(first, reference=original.digest)})
    for given, seen in ((first, original), (other, other)):
        manifests = {"reference": given, "policy": first}
        _refer_to_start(manifests, config, store)
        assert manifests == {"reference": seen, "policy": first}


def start_of(policy, **changes):
    return {"round": 4} | {kind: policy.digest for kind in KINDS} | changes
