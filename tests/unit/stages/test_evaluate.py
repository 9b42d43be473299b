import json

import pytest

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.contracts.config import EvaluateConfig
from burnish.contracts.evaluation import Evaluation
from burnish.contracts.loading import dump_config, parse_config
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt, Reward, Rollout
from burnish.stages.entry import run_stage
from burnish.stages.evaluate import evaluation_metrics, held_out, judge
from burnish.store import open_store


def prompt(index: int, task: str = "sums", split: str = "eval") -> Prompt:
    verifier = {"kind": "exact", "answer": str(index)}
    return Prompt(f"{task}-{split}-{index}", task, split, None, f"{index}+0=", verifier)


def rollout(prompt_id: str, index: int, finish: str = "stop") -> Rollout:
    name = f"{prompt_id}-s{index}"
    return Rollout(
        name, name, 0, prompt_id, prompt_id, "sums", 0, [1], [2, 3], [1, 1], [-0.1, -0.1], finish, 1.0, 1.0, 0, 0,
        "processed", "p", "r",
    )  # fmt: skip


def test_only_held_out_prompts_are_asked_and_each_task_gets_its_share():
    prompts = [prompt(index, task, split) for task in ("a", "b") for split in ("train", "eval") for index in range(5)]
    chosen = held_out(prompts, 2)
    assert [found.prompt_id for found in chosen] == ["a-eval-0", "a-eval-1", "b-eval-0", "b-eval-1"]


def test_passes_are_counted_by_prompt_and_a_missing_verdict_is_not_a_failure():
    prompts = [prompt(0), prompt(1), prompt(2)]
    rollouts = [rollout(found.prompt_id, index) for found in prompts for index in range(4)]
    # Prompt 0: 2 of 4; prompt 1: 1 of 2, two verifiers failed; prompt 2: no verdict at all.
    scores = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, None, None, None, None, None, None]
    rewards = [
        Reward(row.sample_id, {"exact": score, "format": 0.0}, score)
        for row, score in zip(rollouts, scores, strict=True)
    ]
    found = judge("after", 3, prompts, rollouts, rewards[::-1], EvaluateConfig(samples=4, k=[1, 4]), seed=0)
    assert [(outcome.samples, outcome.passed) for outcome in found.outcomes] == [(4, 2), (2, 1), (0, 0)]
    assert found.unscored == 6
    by_k = {score.k: score for score in found.scores if score.task is None}
    assert (by_k[1].value, by_k[1].prompts) == (0.5, 2)
    assert (by_k[4].value, by_k[4].prompts) == (1.0, 1)
    metrics = evaluation_metrics(found)
    assert metrics["pass@1"] == metrics["pass@1/task/sums"] == 0.5
    assert metrics["pass@1/low"] == metrics["pass@1/high"] == 0.5
    assert metrics["response_length_mean"] == 2.0


def test_without_a_verdict_pass_at_k_is_missing_and_not_zero():
    found = judge("before", 0, [prompt(0)], [], [], EvaluateConfig(samples=1, k=[1]), seed=0)
    assert found.scores[0].value is None
    assert evaluation_metrics(found)["pass@1"] is None
    assert found.response_tokens is None


def test_the_interval_comes_from_prompts_and_holds_the_value():
    prompts = [prompt(index) for index in range(20)]
    rollouts = [rollout(found.prompt_id, index) for found in prompts for index in range(2)]
    rewards = [Reward(row.sample_id, {"exact": float(index % 3 == 0)}, 1.0) for index, row in enumerate(rollouts)]
    score = judge("after", 1, prompts, rollouts, rewards, EvaluateConfig(samples=2, k=[1]), seed=1).scores[0]
    assert score.low < score.value < score.high


@pytest.fixture
def stage_inputs(tmp_path, monkeypatch):
    """A tiny random policy, three held-out sums and a config; returns the paths that run_stage wants."""
    from burnish.models.char import make_char_model

    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    store = open_store()
    make_char_model(tmp_path / "policy", layers=1, width=32, seed=0)
    (tmp_path / "prompts").mkdir()
    write_records(tmp_path / "prompts" / "prompts.parquet", [prompt(index) for index in range(3)], Prompt)
    for kind, metadata in (("policy", {"policy_version": 5}), ("prompts", {})):
        manifest = store.put_artifact(kind, tmp_path / kind, lineage=Lineage(stage="sft"), counts={}, metadata=metadata)
        (tmp_path / f"{kind}.json").write_text(manifest.to_json())
    config = parse_config(
        {
            "model": {"path": "char"},
            "rollout": {"max_new_tokens": 4},
            "evaluate": {"samples": 2, "k": [1, 2], "bootstrap": 100},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )
    (tmp_path / "config.yaml").write_text(dump_config(config))
    return tmp_path


def test_the_stage_samples_scores_and_writes_what_the_report_reads(stage_inputs):
    found = {label: evaluate(stage_inputs, label) for label in ("before", "after")}
    evaluation = Evaluation.from_json((found["after"] / "evaluation.json").read_bytes(), "evaluation.json")
    assert (evaluation.label, evaluation.policy_version, len(evaluation.outcomes)) == ("after", 5, 3)
    assert all(outcome.samples == 2 for outcome in evaluation.outcomes)
    samples = read_records(found["after"] / "samples.parquet", Rollout)
    rewards = read_records(found["after"] / "rewards.parquet", Reward)
    assert [row.sample_id for row in samples] == [row.sample_id for row in rewards]
    assert len(samples) == 6
    # The same policy draws the same answers before and after: a change is never made of random numbers.
    assert [row.response_ids for row in read_records(found["before"] / "samples.parquet", Rollout)] == [
        row.response_ids for row in samples
    ]
    assert json.loads((found["before"] / "evaluation.json").read_text())["label"] == "before"


def evaluate(folder, label):
    out = folder / f"evaluation-{label}.json"
    run_stage(
        "evaluate",
        config_path=str(folder / "config.yaml"),
        run_id="r",
        inputs={"policy": str(folder / "policy.json"), "prompts": str(folder / "prompts.json")},
        outputs={"evaluation": str(out)},
        label=label,
    )
    open_store().fetch(Manifest.from_json(out.read_bytes(), label), folder / label)
    return folder / label
