import pytest
from mlflow import MlflowClient

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.loading import parse_config
from burnish.track.local_server import start_mlflow
from burnish.track.model import final_policy
from burnish.track.sync import sync_run


def record(stage: str, round: int | None = None, label: str = "", **more) -> StageRecord:
    return StageRecord(
        run_id="r", stage=stage, round=round, label=label, key="k" * 64, started_at=100.0, finished_at=110.0, **more
    )


def policy(version: int) -> Manifest:
    lineage = Lineage(stage="update", round=version, code="c" * 64)
    return Manifest(kind="policy", blobs=[], lineage=lineage, metadata={"policy_version": version, "step": version})


RECORDS = [
    record("validate", outputs={"prompts": "p" * 64}, metrics={"prompts/sums/train": 8.0}),
    record("sft", outputs={"policy": "0" * 64}),
    record("update", 2, outputs={"updated_policy": policy(2).digest}),
    record("update", 1, outputs={"updated_policy": policy(1).digest}),
    record("evaluate", label="after", metrics={"pass@1": 0.5}),
]


def config(name: str):
    return parse_config({"name": name, "rounds": 2, "track": {"experiment": "tests"}})


def versions_of(uri, name):
    return sorted(MlflowClient(uri).search_model_versions(f"name = '{name}'"), key=lambda found: int(found.version))


def check_registered(uri, name, run):
    client = MlflowClient(uri)
    (version,) = versions_of(uri, name)
    assert version.source == f"burnish://policy/{policy(2).digest}"
    assert version.run_id == run
    assert version.description == "better"
    lineage = {key: version.tags[f"burnish.{key}"] for key in ("policy", "run_id", "base_model", "prompts", "code")}
    assert lineage == {
        "policy": policy(2).digest,
        "run_id": name,
        "base_model": "smollm2-135m-instruct",
        "prompts": "p" * 64,
        "code": "c" * 64,
    }
    assert (version.tags["burnish.policy_version"], version.tags["burnish.store"]) == ("2", "s3://bucket/prefix")
    model = client.get_logged_model(version.tags["burnish.logged_model"])
    assert (str(model.status), model.source_run_id, model.model_type) == ("READY", run, "burnish-policy")
    assert model.tags["burnish.policy"] == policy(2).digest
    assert model.params["preset"] == "grpo"
    assert {metric.key: metric.value for metric in model.metrics} == {"eval/after/pass_at_1": 0.5}
    assert [output.model_id for output in client.get_run(run).outputs.model_outputs] == [model.model_id]
    assert client.get_run(run).info.status == "FINISHED"


def test_the_final_policy_is_that_of_the_last_updated_round():
    assert final_policy(RECORDS) == policy(2).digest
    assert final_policy(RECORDS[:2]) == "0" * 64
    assert final_policy(RECORDS[:1]) is None


def test_a_finished_run_registers_its_policy_by_reference_and_once(send, database, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", "s3://bucket/prefix")
    more = {"config": config("registered"), "status": "FINISHED", "headline": "better", "policy": policy(2)}
    found = send(RECORDS, "registered", **more)
    assert found.problem is None
    assert send(RECORDS, "registered", **more).problem is None
    check_registered(database, "registered", found.run)


def test_another_run_of_the_same_name_is_the_next_version(send, database):
    for run_id, version in (("first", 1), ("second", 2)):
        found = send(
            RECORDS, run_id, config=config("versions"), status="FINISHED", headline=run_id, policy=policy(version)
        )
        assert found.problem is None
    assert [found.tags["burnish.run_id"] for found in versions_of(database, "versions")] == ["first", "second"]


def test_a_failed_run_registers_nothing(send, database):
    send(RECORDS, "unregistered", config=config("unregistered"), status="FAILED", policy=policy(2))
    assert versions_of(database, "unregistered") == []


def test_a_break_halfway_makes_no_second_model(send, database, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", "s3://bucket/prefix")
    more = {"config": config("halfway"), "status": "FINISHED", "headline": "better", "policy": policy(2)}
    for name in ("log_outputs", "finalize_logged_model", "create_model_version"):
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, name, lambda *_, **__: (_ for _ in ()).throw(OSError("connection lost")))
            broken = send(RECORDS, "halfway", **more)
            assert broken.problem == "OSError: connection lost"
            assert broken.left == 0
    found = send(RECORDS, "halfway", **more)
    assert found.problem is None
    check_registered(database, "halfway", found.run)
    experiment = MlflowClient(database).get_run(found.run).info.experiment_id
    models = MlflowClient(database).search_logged_models([experiment], f"source_run_id = '{found.run}'")
    assert len(models) == 1


@pytest.mark.slow
def test_a_server_takes_datasets_load_and_model_over_rest(tmp_path, monkeypatch):
    for name in ("MLFLOW_RUN_ID", "MLFLOW_PARENT_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BURNISH_STORE", "s3://bucket/prefix")
    # A process that just started answers its first requests slowly.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    page = tmp_path / "report.html"
    page.write_text("<p>")
    loaded = RECORDS[0].model_copy(update={"load": [{"time": 105.0, "cpu_cores": 0.5, "memory_mb": 100.0}]})
    with start_mlflow(tmp_path / "home") as server:
        server.wait_ready()
        found = sync_run(
            [loaded, *RECORDS[1:]], "rest", config("rest"), tracking_uri=server.uri, status="FINISHED",
            files=[page], headline="better", policy=policy(2),
        )  # fmt: skip
        assert found is not None
        assert (found.problem, found.left) == (None, 0)
        check_registered(server.uri, "rest", found.run)
        client = MlflowClient(server.uri)
        run = client.get_run(found.run)
        assert [given.dataset.name for given in run.inputs.dataset_inputs] == ["sums/train"]
        assert "better" in run.data.tags["mlflow.note.content"]
        assert [file.path for file in client.list_artifacts(found.run)] == ["report.html"]
        (point,) = client.get_metric_history(found.run, "system/validate/cpu_cores")
        assert (point.step, point.value, point.timestamp) == (5, 0.5, 105_000)
