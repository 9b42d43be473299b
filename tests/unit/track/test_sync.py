import time

import pytest
from mlflow import MlflowClient

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.loading import parse_config
from burnish.track import points
from burnish.track.points import metric_points
from burnish.track.run import flat_params
from burnish.track.sync import sync_run

CONFIG = parse_config({"name": "run", "rounds": 2, "track": {"experiment": "tests", "tags": {"team@a": "x"}}})


def record(stage: str, round: int | None = None, label: str = "", key: str = "a" * 64, **more) -> StageRecord:
    return StageRecord(
        run_id="r", stage=stage, round=round, label=label, key=key, started_at=100.0, finished_at=110.0, **more
    )


RECORDS = [
    record("evaluate", label="before", metrics={"pass@1": 0.25, "pass@1/low": 0.2}, timings={"total": 3.0}),
    record("reward", 1, metrics={"reward/mean": 0.5, "reward/std": None, "odd": float("nan")}),
    record(
        "update", 1, metrics={"kl": 0.1, "staleness": 0.0},
        series=[{"step": 1.0, "kl": 0.1, "lr": 1e-6}, {"step": 2.0, "kl": None, "lr": 1e-6}],
    ),
    record("reward", 2, metrics={"reward/mean": 0.75}),
    record("evaluate", label="after", metrics={"pass@1": 0.5}),
]  # fmt: skip


def history(database, run, name):
    return [
        (point.step, point.value, point.timestamp) for point in MlflowClient(database).get_metric_history(run, name)
    ]


def test_names_and_steps_are_those_of_rounds_optimizer_steps_and_evaluations():
    points = {(name, step): value for found in RECORDS for name, value, step in metric_points(found, rounds=2)}
    assert points == {
        ("eval/before/pass_at_1", 0): 0.25,
        ("eval/before/pass_at_1/low", 0): 0.2,
        ("time/evaluate", 0): 3.0,
        ("reward/mean", 1): 0.5,
        ("update/round/kl", 1): 0.1,
        ("update/staleness", 1): 0.0,
        ("update/kl", 1): 0.1,
        ("update/lr", 1): 1e-6,
        ("update/lr", 2): 1e-6,
        ("reward/mean", 2): 0.75,
        ("eval/after/pass_at_1", 2): 0.5,
    }


def test_parameters_are_flat_and_fit_mlflow():
    params = flat_params(parse_config({"tasks": [{"source": "sums", "params": {"note": "x" * 9000}}]}))
    assert params["update.preset"] == "grpo"
    assert params["tasks.0.source"] == "sums"
    assert params["evaluate.k"] == "[1, 8]"
    assert params["model.revision"] == "null"
    assert len(params["tasks.0.params.note"]) == 6000


def test_a_record_is_sent_once_however_often_a_run_is_synced(send, database):
    first = send(RECORDS[:3], "once")
    assert (first.sent, first.left, first.problem) == (3, 0, None)
    second = send(RECORDS, "once", status="FINISHED")
    assert (second.sent, second.run) == (2, first.run)
    # The same result, remembered in a later attempt of the run, is the same record.
    third = send([found.model_copy(update={"cached": True}) for found in RECORDS], "once", status="FINISHED")
    assert third.sent == 0
    assert history(database, first.run, "reward/mean") == [(1, 0.5, 110_000), (2, 0.75, 110_000)]
    run = MlflowClient(database).get_run(first.run)
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (100_000, 110_000)
    assert [tag for tag in run.data.tags if "sent" in tag and not tag.startswith("mlflow.")] == []
    assert run.data.params["rollout.temperature"] == "1.0"
    assert run.info.run_name == run.data.tags["burnish.run_id"] == "once"  # two runs of one file can be told apart
    assert run.data.tags["team_at_a"] == "x"


def test_what_a_run_has_cost_so_far_is_a_curve_over_rounds(send, database):
    config = parse_config({"name": "priced", "rounds": 2, "cost": {"cpu_hour": 3.6, "budget": 9}})
    paid = [found.model_copy(update={"resources": {"cpu": 2.0}}) for found in RECORDS]
    first = send(paid[:3], "priced", config)
    send(paid, "priced", config)
    send(paid, "priced", config)
    curve = [(step, value) for step, value, _ in history(database, first.run, "cost/total")]
    # Two cores at 3.60 an hour are 0.002 a second.
    expected = [sum(found.seconds for found in some) * 0.002 for some in (paid[:3], paid)]
    assert [value for _, value in curve] == pytest.approx(expected)
    assert [step for step, _ in curve] == [1, 2]
    assert MlflowClient(database).get_run(first.run).data.params["cost.budget"] == "9.0"
    unknown = send(RECORDS, "unpriced", config)
    assert history(database, unknown.run, "cost/total") == []


def test_a_break_between_metrics_and_mark_repeats_nothing(send, database, monkeypatch):
    real = MlflowClient.log_batch

    def break_after_metrics(self, run_id, metrics=(), params=(), tags=(), **more):
        real(self, run_id, metrics=metrics, params=params, **more)
        if metrics:
            raise OSError("connection lost")

    monkeypatch.setattr(MlflowClient, "log_batch", break_after_metrics)
    broken = send(RECORDS, "broken")
    assert (broken.sent, broken.left, broken.problem) == (0, 5, "OSError: connection lost")
    monkeypatch.undo()
    assert send(RECORDS, "broken").sent == 5
    assert len(history(database, broken.run, "update/lr")) == 2


def test_a_stage_that_ran_again_with_other_inputs_is_sent_again(send, database):
    first = send([RECORDS[1]], "again")
    changed = record("reward", 1, key="b" * 64, metrics={"reward/mean": 0.6})
    assert send([changed], "again").sent == 1
    assert [value for _, value, _ in history(database, first.run, "reward/mean")] == [0.5, 0.6]


def test_a_failure_is_a_tag_and_its_metrics_wait_for_success(send, database):
    failed = record("update", 2, error="out of memory")
    found = send([*RECORDS, failed], "failed", status="FAILED")
    assert found.left == 0
    client = MlflowClient(database)
    run = client.get_run(found.run)
    assert run.info.status == "FAILED"
    assert run.data.tags["burnish.error"] == "round 2 - update: out of memory"
    send([*RECORDS, record("update", 2, metrics={"kl": 0.2})], "failed", status="FINISHED")
    run = client.get_run(found.run)
    assert (run.info.status, run.data.tags["burnish.error"]) == ("FINISHED", "")
    assert run.data.metrics["update/kl"] == 0.2


def test_a_changed_setting_is_a_tag_because_parameters_cannot_change(send, database):
    found = send([], "changed")
    changed = CONFIG.model_copy(update={"rounds": 9})
    assert send([], "changed", changed).problem is None
    run = MlflowClient(database).get_run(found.run)
    assert (run.data.params["rounds"], run.data.tags["changed.rounds"]) == ("2", "9")


def test_a_run_that_mlflow_already_knows_is_joined(send, database, monkeypatch):
    client = MlflowClient(database)
    run = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run)
    assert send(RECORDS, "joined").run == run
    assert client.get_run(run).data.metrics["reward/mean"] == 0.75


def test_a_long_curve_goes_in_several_requests_and_arrives_whole(send, database, monkeypatch):
    monkeypatch.setattr(points, "METRICS_A_BATCH", 10)
    series = [{"step": float(step), "loss": float(step)} for step in range(37)]
    found = send([RECORDS[1], record("sft", series=series), RECORDS[3]], "long")
    assert (found.sent, found.problem) == (3, None)
    assert [step for step, _, _ in history(database, found.run, "sft/loss")] == list(range(37))
    assert len(history(database, found.run, "reward/mean")) == 2


def test_files_become_artifacts(send, database, tmp_path):
    (tmp_path / "report.html").write_text("<p>")
    found = send([], "files", files=[tmp_path / "report.html"])
    assert [file.path for file in MlflowClient(database).list_artifacts(found.run)] == ["report.html"]


def test_without_an_address_there_is_no_tracking(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert sync_run(RECORDS, "r", CONFIG) is None


def test_a_dead_server_costs_seconds_and_keeps_its_password(monkeypatch):
    started = time.monotonic()
    found = sync_run(RECORDS, "r", CONFIG, tracking_uri="http://user:s3cret@127.0.0.1:9")
    assert found is not None
    assert (found.sent, found.left) == (0, 5)
    assert found.problem == "http://127.0.0.1:9 cannot be reached"
    assert time.monotonic() - started < 10


def test_an_error_of_an_artifact_store_is_a_problem_and_not_the_stages(send, monkeypatch, tmp_path):
    class UploadFailed(Exception):
        """Like boto3's, which is no OSError."""

    def refuse(self, run_id, path):
        raise UploadFailed("no bucket")

    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    found = send(RECORDS, "artifacts", files=[tmp_path / "report.html"])
    assert (found.sent, found.left, found.problem) == (5, 0, "UploadFailed: no bucket")
