import dataclasses

import pytest
from rollout_server import store_in

from burnish.contracts.artifacts import Lineage
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt, Rollout
from burnish.contracts.stages import STAGES
from burnish.stages import evaluate, rollout
from burnish.stages.entry import StageContext


def config(engine, url=""):
    return parse_config(
        {
            "model": {"path": "char"},
            "tasks": [{"source": "sums", "name": "a"}],
            "rollout": {
                "engine": engine, "endpoint": {"url": url},
                "prompts_per_round": 6, "samples_per_prompt": 3, "max_new_tokens": 9,
            },
            "evaluate": {"samples": 2, "k": [1]},
            "runtime": {"threads": 1, "device": "cpu"},
        }
    )  # fmt: skip


@pytest.fixture
def prompts(shop, tmp_path):
    rows = [
        Prompt(f"a-{split}-{i}", "a", split, None, f"{i}+{i}=", {"kind": "exact", "answer": str(2 * i)})
        for split in ("train", "eval")
        for i in range(4)
    ]
    (tmp_path / "prompts").mkdir()
    write_records(tmp_path / "prompts" / "prompts.parquet", rows, Prompt)
    return store_in(shop).put_artifact(
        "prompts", tmp_path / "prompts", lineage=Lineage(stage="test"), counts={}, metadata={}
    )


def run(module, shop, inputs, work, engine, url=""):
    name = module.__name__.rpartition(".")[2]
    stage = STAGES[name]
    context = StageContext(
        stage, config(engine, url).view(stage.sections), "my-run", 2, "after", store_in(shop), inputs, work
    )
    result = module.run(context)
    files = {"rollout": "out/rollouts/rollouts.parquet", "evaluate": "out/evaluation/samples.parquet"}
    return result, read_records(work / files[name], Rollout)


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("module", [rollout, evaluate])
def test_a_stage_with_a_server_writes_what_it_writes_with_an_engine_and_downloads_no_weights(
    module, server, shop, policies, prompts, tmp_path
):
    inputs = {"policy": policies[1], "prompts": prompts}
    _, alone = run(module, shop, inputs, tmp_path / "alone", "hf")
    result, served = run(module, shop, inputs, tmp_path / "served", "endpoint", server.url)
    assert len(served) == len(alone) > 0
    for ours, theirs in zip(alone, served, strict=True):
        assert theirs.rollout_logprobs == pytest.approx(ours.rollout_logprobs, abs=1e-5)
        assert dataclasses.replace(theirs, rollout_logprobs=ours.rollout_logprobs) == ours
    if module is rollout:
        assert 0 <= result.metrics["probe_gap"] < 1e-5
    fetched = {path.name for path in (tmp_path / "served").rglob("*") if "out" not in path.parts}
    assert "tokenizer.json" in fetched
    assert not [name for name in fetched if name.endswith(".safetensors")]
    assert server.ask("GET", "/burnish/version")[1]["holders"] == []
