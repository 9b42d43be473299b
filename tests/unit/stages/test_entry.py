import json
import sys
import types

import pytest

from burnish.contracts import stages as stage_table
from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.errors import ConfigError, ContractError, StageError
from burnish.contracts.stages import Stage
from burnish.stages import keys
from burnish.stages.entry import StageResult, run_stage
from burnish.store import open_store


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder store, a config file, and two stages: `make` writes a number, `double` reads and doubles it."""
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.yaml").write_text("name: demo\nrollout: {max_new_tokens: 21}\n")
    calls = []

    def make(context):
        calls.append("make")
        (context.output_dir("rollouts") / "n.txt").write_text(str(context.config.rollout.max_new_tokens))
        return StageResult({"n": 21.0, "unknown": None}, [{"step": 1.0, "loss": 0.5}], {"rollouts": {"rows": 1}})

    def double(context):
        calls.append("double")
        number = int((context.input_dir("rollouts") / "n.txt").read_text())
        (context.output_dir("rewards") / "n.txt").write_text(str(2 * number))
        return StageResult(metadata={"rewards": {"seed": context.seed}})

    for name, run, reads, writes in (
        ("make", make, {}, {"rollouts": "rollouts"}),
        ("double", double, {"rollouts": "rollouts"}, {"rewards": "rewards"}),
    ):
        monkeypatch.setitem(stage_table.STAGES, name, Stage(name, reads, writes, ("seed", "rollout")))
        module = types.ModuleType(f"burnish.stages.{name}")
        module.run = run
        monkeypatch.setitem(sys.modules, f"burnish.stages.{name}", module)
    return types.SimpleNamespace(path=tmp_path, calls=calls)


def run_make(work, *overrides, round=1, run_id="r"):
    return run_stage(
        "make", config_path=str(work.path / "config.yaml"), run_id=run_id, round=round, inputs={},
        outputs={"rollouts": str(work.path / "rollouts.json")}, overrides=overrides,
    )  # fmt: skip


def run_double(work, *overrides, round=1):
    return run_stage(
        "double", config_path=str(work.path / "config.yaml"), run_id="r", round=round,
        inputs={"rollouts": str(work.path / "rollouts.json")},
        outputs={"rewards": str(work.path / "rewards.json")}, overrides=overrides,
    )  # fmt: skip


def test_artifacts_pass_from_stage_to_stage_by_manifest(workplace, tmp_path):
    run_make(workplace)
    record = run_double(workplace)
    manifest = Manifest.from_json((tmp_path / "rewards.json").read_bytes(), "rewards")
    open_store().fetch(manifest, tmp_path / "out")
    assert (tmp_path / "out" / "n.txt").read_text() == "42"
    assert manifest.kind == "rewards"
    made = Manifest.from_json((tmp_path / "rollouts.json").read_bytes(), "rollouts")
    assert manifest.lineage.inputs == {"rollouts": made.digest}
    assert manifest.lineage.round == 1
    assert record.outputs == {"rewards": manifest.digest}
    assert {"start", "import", "download", "compute", "upload", "total"} <= set(record.timings)


def test_a_record_says_which_image_ran_it_and_what_its_processes_took(workplace, monkeypatch):
    monkeypatch.setenv("BURNISH_IMAGE", "registry/make@sha256:1")
    record = run_make(workplace)
    assert record.image == "registry/make@sha256:1"
    assert record.load[0]["memory_mb"] > 10
    assert record.started_at <= record.load[0]["time"] <= record.finished_at + 0.001


def test_a_finished_stage_is_not_run_again(workplace, tmp_path):
    first = run_make(workplace)
    (tmp_path / "rollouts.json").unlink()
    second = run_make(workplace, run_id="other")
    assert workplace.calls == ["make"]
    assert second.cached
    assert second.metrics == first.metrics == {"n": 21.0, "unknown": None}
    assert (tmp_path / "rollouts.json").exists()
    assert [record.run_id for record in open_store().run_records("other")] == ["other"]


@pytest.mark.parametrize(
    ("changed", "runs_again"),
    [
        ({"overrides": ("rollout.max_new_tokens=22",)}, True),
        ({"overrides": ("seed=1",)}, True),
        ({"round": 2}, True),
        ({"overrides": ("update.learning_rate=0.5", "rounds=9")}, False),
    ],
)
def test_a_stage_runs_again_exactly_when_something_it_depends_on_changed(workplace, changed, runs_again):
    run_make(workplace)
    run_make(workplace, *changed.get("overrides", ()), round=changed.get("round", 1))
    assert workplace.calls == ["make"] * (2 if runs_again else 1)


def test_changed_code_never_meets_results_of_the_old_code(workplace, monkeypatch):
    run_make(workplace)
    monkeypatch.setattr(keys, "code_digest", lambda: "other code")
    run_make(workplace)
    assert workplace.calls == ["make", "make"]


def test_a_result_whose_bytes_were_collected_is_made_again(workplace, tmp_path):
    run_make(workplace)
    for blob in (tmp_path / "store" / "blobs" / "sha256").iterdir():
        blob.unlink()
    run_make(workplace)
    assert workplace.calls == ["make", "make"]


def test_reading_an_undeclared_section_fails_instead_of_remembering_wrongly(workplace, monkeypatch):
    monkeypatch.setattr(sys.modules["burnish.stages.make"], "run", lambda context: context.config.update)
    with pytest.raises(AttributeError):
        run_make(workplace)


def test_a_failure_leaves_a_record_and_no_output(workplace, monkeypatch, tmp_path):
    def fail(context):
        (context.output_dir("rollouts") / "half.txt").write_text("half")
        raise StageError("loss is nan at step 3; lower update.learning_rate")

    monkeypatch.setattr(sys.modules["burnish.stages.make"], "run", fail)
    with pytest.raises(StageError):
        run_make(workplace)
    (record,) = open_store().run_records("r")
    assert record.error == "loss is nan at step 3; lower update.learning_rate"
    assert record.outputs == {}
    assert not (tmp_path / "rollouts.json").exists()
    assert not list((tmp_path / "store").rglob("manifests/*"))


def test_an_input_of_the_wrong_kind_is_refused(workplace, tmp_path):
    run_make(workplace)
    text = json.loads((tmp_path / "rollouts.json").read_text())
    (tmp_path / "rollouts.json").write_text(json.dumps(text | {"kind": "policy"}))
    with pytest.raises(ContractError, match="input 'rollouts' is a policy, expected a rollouts"):
        run_double(workplace)


def test_the_seed_differs_by_round_and_not_by_attempt(workplace, tmp_path):
    seeds = []
    for round in (1, 2):
        run_make(workplace, round=round)
        run_double(workplace, round=round)
        manifest = Manifest.from_json((tmp_path / "rewards.json").read_bytes(), "rewards")
        seeds.append(manifest.metadata["seed"])
    assert seeds[0] != seeds[1]


def test_after_a_stop_a_stage_passes_on_without_work_and_says_so(workplace, monkeypatch, tmp_path):
    def stop(context):
        (context.output_dir("rollouts") / "n.txt").write_text("1")
        return StageResult(metadata={"rollouts": {"stopped": True}})

    monkeypatch.setattr(sys.modules["burnish.stages.make"], "run", stop)
    run_make(workplace)
    record = run_double(workplace)
    assert workplace.calls == []
    assert record.skipped
    passed = Manifest.from_json((tmp_path / "rewards.json").read_bytes(), "rewards")
    assert passed.blobs == []
    # What reads the empty artifact is stopped as well.
    assert passed.metadata == {"stopped": True}
    assert {found.stage: found.skipped for found in open_store().run_records("r")} == {"make": False, "double": True}


def test_after_a_stop_an_input_of_the_output_s_kind_goes_through_unchanged(workplace, monkeypatch, tmp_path):
    monkeypatch.setitem(
        stage_table.STAGES, "double", Stage("double", {"rollouts": "rollouts"}, {"again": "rollouts"}, ("seed",))
    )
    stopped = StageResult(metadata={"rollouts": {"stopped": True}})
    monkeypatch.setattr(sys.modules["burnish.stages.make"], "run", lambda context: stopped)
    run_make(workplace)
    run_stage(
        "double", config_path=str(tmp_path / "config.yaml"), run_id="r", round=2,
        inputs={"rollouts": str(tmp_path / "rollouts.json")}, outputs={"again": str(tmp_path / "again.json")},
    )  # fmt: skip
    assert (tmp_path / "again.json").read_text() == (tmp_path / "rollouts.json").read_text()


def test_a_spent_budget_stops_the_run_before_a_round_and_a_larger_one_goes_on(workplace, monkeypatch):
    monkeypatch.setitem(
        stage_table.STAGES, "make", Stage("make", {}, {"rollouts": "rollouts"}, ("rollout",), begins_round=True)
    )
    monkeypatch.setenv("BURNISH_RESOURCES", '{"cpu": 2}')
    sft = StageRecord(run_id="r", stage="sft", key="k", timings={"total": 3600.0}, resources={"cpu": 2.0})
    open_store().put_run_record(sft)
    price = "cost.cpu_hour=1.5"
    stopped = run_make(workplace, price, "cost.budget=2.5")
    assert workplace.calls == []
    assert stopped.skipped
    assert stopped.stop_reason.startswith("cost.budget is 2.5 USD: 3.00 are spent;")
    assert run_double(workplace, price).skipped
    made = run_make(workplace, price, "cost.budget=3.5")
    assert workplace.calls == ["make"]
    assert (made.skipped, made.stop_reason, made.resources) == (False, "", {"cpu": 2.0})
    # What is known already costs nothing, so no budget keeps it back.
    assert run_make(workplace, price, "cost.budget=1").cached_from == "r"


def test_resources_that_make_no_sense_are_one_line(workplace, monkeypatch):
    monkeypatch.setenv("BURNISH_RESOURCES", "4 cpus")
    with pytest.raises(ConfigError, match="BURNISH_RESOURCES is '4 cpus'; set it to JSON"):
        run_make(workplace)


def test_an_output_may_be_an_artifact_that_exists(workplace, monkeypatch, tmp_path):
    run_make(workplace)
    made = Manifest.from_json((tmp_path / "rollouts.json").read_bytes(), "rollouts")
    monkeypatch.setattr(
        sys.modules["burnish.stages.make"], "run", lambda context: StageResult(reused={"rollouts": made.digest})
    )
    again = run_make(workplace, round=2)
    assert again.outputs == {"rollouts": made.digest}
