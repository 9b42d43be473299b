"""MLflow that is down, hangs, refuses or breaks off: no stage fails or waits long, and in the end all is there once."""

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import Answer, CutConnection, Faults, faulty_proxy
from two_stages import TRACKED, start

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.loading import parse_config
from burnish.track.sync import sync_run

REGISTRY = "mlflow.tracking._model_registry.utils._registry_uri"
TOKEN = "a-token-that-must-not-show"
# Two batches and something of every kind.
RECORDS = [
    StageRecord(
        run_id="run", stage=stage, round=round, key="a" * 64, metrics={"reward/mean": float(round)},
        series=[{"step": 500.0 * round + step, "loss": 1.0} for step in range(500)] if stage == "update" else [],
        started_at=100.0 * round, finished_at=100.0 * round + 10.0,
    )
    for round in (1, 2) for stage in ("reward", "update")
]  # fmt: skip
POLICY = Manifest(kind="policy", blobs=[], lineage=Lineage(stage="update"))


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server in a thread; its own process would take three times as long to come up."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder / 'mlflow.db'}")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(folder / "artifacts"))
        patch.setenv("_MLFLOW_SERVER_SERVE_ARTIFACTS", "false")
        # The server makes its database that of all clients in its process: undone at the end.
        patch.setattr(REGISTRY, None)
        patch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
        patch.setenv("MLFLOW_TRACKING_URI", "set, so that it is taken away at the end")
        patch.delenv("MLFLOW_TRACKING_URI")
        from mlflow import MlflowClient
        from mlflow.server import app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: object) -> None:
                pass

        server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        # Both make tables, which takes seconds.
        MlflowClient(uri).search_experiments()
        MlflowClient(uri, registry_uri=uri).search_registered_models()
        yield uri
        server.shutdown()


@pytest.fixture
def mlflow(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Faults]]:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_PARENT_RUN_ID", "MLFLOW_TRACKING_URI", "BURNISH_STORE"):
        monkeypatch.delenv(name, raising=False)
    # The machine may be busy with other tests; the one about hanging sets its own.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    with faulty_proxy(mlflow_server) as (uri, faults):
        monkeypatch.setattr(REGISTRY, uri)
        yield uri, faults


def sync(uri: str, name: str, files: list[Path], records: list[StageRecord] = RECORDS):
    config = parse_config({"name": name, "rounds": 2, "track": {"experiment": name}})
    found = sync_run(
        records, "run", config, tracking_uri=uri, status="FINISHED", headline="done", files=files, policy=POLICY
    )
    assert found
    return found


def contents(uri: str, name: str) -> dict[str, object]:
    """All that MLflow holds of an experiment, but for ids and the times of its own clock."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    [run] = client.search_runs([experiment.experiment_id])
    curves = {
        metric: [
            (point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, metric)
        ]
        for metric in run.data.metrics
    }
    versions = client.search_model_versions(f"name = '{name}'")
    models = client.search_logged_models([experiment.experiment_id])
    return {
        "curves": {metric: sorted(points) for metric, points in curves.items()},
        "params": {key: value for key, value in run.data.params.items() if value != name},
        "tags": sorted(run.data.tags),
        "status": run.info.status,
        "times": (run.info.start_time, run.info.end_time),
        "versions": len(versions),
        "models": [model.status for model in models],
        "files": [file.path for file in client.list_artifacts(run.info.run_id)],
    }


@pytest.fixture
def report(tmp_path: Path) -> list[Path]:
    (tmp_path / "report.html").write_text("<p>")
    return [tmp_path / "report.html"]


def test_an_mlflow_that_goes_away_at_any_request_has_all_of_it_once_when_it_is_back(mlflow, report, monkeypatch):
    uri, faults = mlflow
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert sync(uri, "whole", report).problem is None
    whole = contents(uri, "whole")
    assert whole["versions"] == 1
    assert len(whole["curves"]["update/loss"]) == 1000
    # Each of them would take minutes.
    for number in itertools.count(2, 6):
        faults.requests.clear()

        def gone(point, request, number=number):
            if request.number >= number and point == "executed":
                raise CutConnection

        faults.at = gone
        found = sync(uri, f"gone-{number}", report)
        faults.at = lambda point, request: None
        if len(faults.requests) < number:
            break
        assert found.problem
        assert sync(uri, f"gone-{number}", report).problem is None
        assert contents(uri, f"gone-{number}") == whole
    assert number > 12


def test_requests_whose_answers_get_lost_are_not_done_twice(mlflow, report) -> None:
    uri, faults = mlflow
    assert sync(uri, "heard", report).problem is None
    lost = set()

    def lose_each_first(point, request):
        if point == "executed" and request.method == "POST" and request.path not in lost:
            lost.add(request.path)
            raise CutConnection

    faults.at = lose_each_first
    while sync(uri, "lost", report).problem:
        pass
    assert any("model-versions/create" in path for path in lost)
    assert contents(uri, "lost") == contents(uri, "heard")


@pytest.mark.parametrize("status", [401, 403])
def test_an_mlflow_that_refuses_says_what_to_set_and_never_the_token(mlflow, report, monkeypatch, status) -> None:
    uri, faults = mlflow
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    faults.at = lambda point, request: Answer(status, f"Bearer {TOKEN} is not known".encode())
    found = sync(uri, "refused", report)
    assert found.left == len(RECORDS)
    assert found.problem == (
        f"{uri} refuses us (status {status}); check MLFLOW_TRACKING_TOKEN, "
        "or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    )
    faults.at = lambda point, request: Answer(400, f"Bearer {TOKEN} is odd".encode())
    found = sync(uri, "refused", report)
    assert TOKEN not in (found.problem or "")
    assert "\n" not in (found.problem or "")


def test_a_slow_mlflow_is_left_after_a_minute_and_the_rest_goes_later(mlflow, report, monkeypatch) -> None:
    uri, faults = mlflow
    monkeypatch.setattr("burnish.track.sync.PATIENCE_S", 0.5)
    monkeypatch.setattr("burnish.track.points.METRICS_A_BATCH", 100)
    faults.at = lambda point, request: time.sleep(0.1) if point == "executed" else None
    slow = sync(uri, "slow", report)
    assert slow.left
    assert slow.problem == f"{uri} took more than 0.5 s"
    faults.at = lambda point, request: None
    monkeypatch.setattr("burnish.track.sync.PATIENCE_S", 60.0)
    rest = sync(uri, "slow", report)
    assert (rest.left, rest.problem) == (0, None)
    assert len(contents(uri, "slow")["curves"]["update/loss"]) == 1000


def test_a_stage_whose_mlflow_hangs_is_done_all_the_same_within_seconds(place, mlflow, tmp_path) -> None:
    uri, faults = mlflow
    over = threading.Event()
    faults.at = lambda point, request: over.wait(60) and None
    began = time.monotonic()
    settings = {TRACKED: "1", "MLFLOW_TRACKING_URI": uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "4"}
    process = start(place.environment | settings, tmp_path / "run", "run")
    try:
        assert process.wait() == 0, process.log
    finally:
        over.set()
    assert time.monotonic() - began < 60, "most of it is the import of mlflow"
    assert f"MLflow: {uri} cannot be reached; 2 records are left for the next sync" in process.log
    assert set(process.outputs()) == {"rollouts", "rewards", "logprobs"}


def test_a_record_that_cannot_be_read_costs_a_tracked_stage_a_line(place, tmp_path) -> None:
    place.open().backend.put_bytes("runs/run/of-another-version.json", b"{}")
    settings = {TRACKED: "1", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    process = start(place.environment | settings, tmp_path / "run", "run")
    assert process.wait() == 0, process.log
    assert "MLflow: the run's records cannot be read: record runs/run/of-another-version.json" in process.log
