import json
from types import SimpleNamespace

import pytest

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.contracts.loading import load_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt, Rollout
from burnish.stages.component import run_component
from burnish.store import open_store

SMALL = {
    "name": "form",
    "model": {"path": "char"},
    "tasks": [{"source": "sums", "params": {"style": "raw"}, "train_size": 8, "eval_size": 4, "sft_size": 4}],
}


class Metrics(dict):
    log_metric = dict.__setitem__


@pytest.fixture
def validate(tmp_path, monkeypatch):
    """Runs validate as its component does; returns the artifacts that KFP gets."""
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))

    def run(**given):
        outputs = {
            name: SimpleNamespace(path=str(tmp_path / name), metadata={}, uri="") for name in ("resolved", "prompts")
        }
        run_component("validate", run_id="run", config=json.dumps(SMALL), outputs=outputs, metrics=Metrics(), **given)
        return outputs

    return run


def resolved_config(artifact, folder):
    with open(artifact.path, "rb") as file:
        manifest = Manifest.from_json(file.read(), artifact.path)
    open_store().fetch(manifest, folder)
    return load_config(folder / "config.yaml")


def test_a_filled_field_of_the_form_counts_and_an_empty_one_does_not(validate, tmp_path):
    form = {"evaluate.samples": "", "update.learning_rate": "3e-6", "rollout.prompts_per_round": " "}
    config = resolved_config(validate(form=form)["resolved"], tmp_path / "files")
    assert config.update.learning_rate == 3e-6
    assert config.evaluate.samples == load_config(None).evaluate.samples
    assert config.rollout.prompts_per_round == load_config(None).rollout.prompts_per_round


def test_overrides_have_the_last_word(validate, tmp_path):
    given = validate(form={"update.steps": "3"}, overrides="update.steps=5\nseed=2")
    config = resolved_config(given["resolved"], tmp_path / "files")
    assert (config.update.steps, config.seed) == (5, 2)


def test_a_mistake_in_the_form_is_one_line_and_the_users_exit_code(validate, capsys):
    with pytest.raises(SystemExit) as ended:
        validate(form={"evaluate.samples": "many"})
    assert ended.value.code == 2
    assert "error: evaluate.samples is 'many'" in capsys.readouterr().err


def test_an_artifact_tells_kfp_its_digest_counts_code_and_image(validate, monkeypatch):
    monkeypatch.setenv("BURNISH_IMAGE", "example.com/b/validate@sha256:abc")
    prompts = validate()["prompts"]
    with open(prompts.path, "rb") as file:
        manifest = Manifest.from_json(file.read(), prompts.path)
    assert prompts.metadata["digest"] == manifest.digest
    assert prompts.metadata["bytes"] == manifest.size
    assert prompts.metadata["code"] == manifest.lineage.code
    assert prompts.metadata["image"] == "example.com/b/validate@sha256:abc"
    assert manifest.counts.items() <= prompts.metadata.items()
    assert manifest.counts
    assert "round" not in prompts.metadata


def test_what_is_said_of_rollouts_carries_their_round_and_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    inputs = {
        name: SimpleNamespace(path=str(tmp_path / f"{name}.json")) for name in ("rollouts", "prompts", "resolved")
    }
    (tmp_path / "config.yaml").write_text(json.dumps(SMALL))
    files = {"rollouts": "rollouts.parquet", "prompts": "prompts.parquet", "resolved": "config.yaml"}
    write_records(tmp_path / "rollouts.parquet", [], Rollout)
    write_records(tmp_path / "prompts.parquet", [], Prompt)
    for name, kind in (("rollouts", "rollouts"), ("prompts", "prompts"), ("resolved", "config")):
        folder = tmp_path / f"folder-{name}"
        folder.mkdir()
        (tmp_path / files[name]).rename(folder / files[name])
        manifest = open_store().put_artifact(
            kind, folder, lineage=Lineage(stage="rollout", round=3), counts={}, metadata={"policy_version": 2}
        )
        (tmp_path / f"{name}.json").write_text(manifest.to_json())
    executions = SimpleNamespace(path=str(tmp_path / "executions"), metadata={})
    run_component(
        "execute",
        run_id="run",
        round=3,
        config=inputs.pop("resolved"),
        inputs=inputs,
        outputs={"executions": executions},
        metrics=Metrics(),
    )
    assert executions.metadata["policy_version"] == 2
    assert executions.metadata["round"] == 3
