"""`burnish submit --compare`: the same table from the store's records and from MLflow."""

import pytest
from kfp_stand_in import serve_kfp

from burnish.cli.compare_runs import METRICS, curves_of
from burnish.cli.main import main
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.store import open_store


def records(run_id, rewards, after):
    def record(stage, metrics, round=None, label=""):
        return StageRecord(
            run_id=run_id, stage=stage, round=round, label=label, key=f"{stage}{round}{label}", metrics=metrics,
            timings={"total": 10.0}, started_at=1.0 + (round or 0), finished_at=2.0 + (round or 0),
        )  # fmt: skip

    found = [record("evaluate", {"pass@1": 0.2}, label="before"), record("evaluate", {"pass@1": after}, label="after")]
    for round, reward in enumerate(rewards, 1):
        found.append(record("rollout", {"response_length_mean": 30.0 + round}, round))
        found.append(record("reward", {"reward/mean": reward}, round))
        found.append(record("logprob", {"kl_ref": 0.01 * round, "entropy": 0.5, "ess": None}, round))
    return found


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    runs = {"one-1": records("one-1", [0.1, 0.5, 0.4], 0.3), "two-2": records("two-2", [0.1, 0.9], 0.7)}
    store = open_store()
    for found in runs.values():
        for record in found:
            store.put_run_record(record)
    return runs


def submit(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["submit", *arguments])
    return ended.value.code


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


EXPECTED = [
    "one-1 two-2 difference",
    "pass@1 before 0.2 0.2 +0",
    "pass@1 after 0.3 0.7 +0.4",
    "reward, first round 0.1 0.1 +0",
    "reward, last round 0.4 0.9 +0.5",
    "reward, best round 0.5 0.9 +0.4",
    "KL to reference, last 0.03 0.02 -0.01",
    "entropy, last 0.5 0.5 +0",
    "response length, last 33 32 -1",
    "seconds of rollout 30 20 -10",
]


def test_two_runs_are_compared_without_starting_anything(two_runs, capsys):
    assert submit("--compare", "one-1,two-2") == 0
    assert lines(capsys.readouterr().out) == EXPECTED


def test_mlflow_gives_the_same_figures_as_the_store(two_runs, tmp_path, monkeypatch):
    from burnish.track.sync import sync_run

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for run_id, found in two_runs.items():
        rounds = max(record.round or 0 for record in found)
        result = sync_run(found, run_id, RunConfig(name=run_id[:3], rounds=rounds), tracking_uri=uri)
        assert result.problem is None
    stored = {run_id: curves_of(run_id) for run_id in two_runs}
    monkeypatch.delenv("BURNISH_STORE")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert {run_id: curves_of(run_id) for run_id in two_runs} == stored
    assert set(stored["one-1"]) < set(METRICS)


def test_a_run_that_is_not_there_is_one_line_with_those_that_are(two_runs, capsys):
    assert submit("--compare", "one-1,three-3") == 1
    error = capsys.readouterr().err
    assert "run 'three-3' left no figures" in error
    assert "runs there: one-1, two-2" in error


def test_nothing_to_read_figures_from_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("BURNISH_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert submit("--compare", "a,b") == 1
    assert "neither BURNISH_STORE nor MLFLOW_TRACKING_URI is set" in capsys.readouterr().err


def test_the_run_just_started_is_compared_once_it_ended(two_runs, capsys):
    with serve_kfp() as server:
        source = {"pipeline_id": "p1", "pipeline_version_id": "v0"}
        server.spec = {"root": {"dag": {"tasks": {}}}, "components": {}}
        server.states = [{"run_id": "r1", "state": "SUCCEEDED", "pipeline_version_reference": source}]
        # The stand-in runs nothing, so the new run has no figures: what is asked for is the comparison with it.
        assert submit("--host", server.host, "--compare", "one-1", "name=demo", "rounds=1") == 1
    shown = capsys.readouterr()
    assert "run r1: succeeded" in shown.out
    assert "run 'demo-" in shown.err


def test_a_run_that_cannot_be_compared_with_is_known_of_before_anything_starts(two_runs, capsys):
    with serve_kfp() as server:
        assert submit("--host", server.host, "--compare", "three-3", "name=demo", "rounds=1") == 1
        assert not server.runs
        assert not server.uploads
    assert "run 'three-3' left no figures" in capsys.readouterr().err


def test_the_metrics_are_names_that_a_run_has():
    from burnish.track.points import metric_points

    update = StageRecord(
        run_id="r", stage="update", round=1, key="k", metrics={"clip_fraction": 0.1}, timings={"total": 1.0},
        series=[{"step": 1.0, "clip_fraction": 0.1}],
    )  # fmt: skip
    assert {"update/round/clip_fraction", "time/update"} <= {name for name, _, _ in metric_points(update, 1)}
