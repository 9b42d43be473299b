import json
import sys
import tempfile
from pathlib import Path

import pytest

from burnish.contracts.artifacts import Manifest
from burnish.contracts.loading import dump_config
from burnish.stages.entry import run_stage

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from synthetic_run import SyntheticRun, open_folder_store, synthetic_config


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Writes a synthetic run into the store that the stage will open; returns it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))

    def write(fail_at: str | None = None) -> SyntheticRun:
        run = SyntheticRun(open_folder_store(tmp_path), synthetic_config(rounds=2), fail_at=fail_at)
        run.write()
        return run

    return write


def report(run: SyntheticRun, folder: Path) -> Path:
    """Run the stage; returns the folder of its files."""
    (folder / "config.yaml").write_text(dump_config(run.config))
    run_stage(
        "report",
        config_path=str(folder / "config.yaml"),
        run_id=run.run_id,
        inputs={},
        outputs={"report": str(folder / "report.json")},
    )
    manifest = Manifest.from_json((folder / "report.json").read_bytes(), "report")
    out = Path(tempfile.mkdtemp(dir=folder))
    run.store.fetch(manifest, out)
    return out


def test_the_report_of_a_whole_run_has_its_figures(write_run, tmp_path):
    out = report(write_run(), tmp_path)
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "summary.json", "config.yaml"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["rounds_done"] == 2
    assert summary["headline"].startswith("pass@1 went from ")
    assert {(row["task"], row["k"]) for row in summary["comparison"]} >= {(None, 1), (None, 8), ("code", 1)}
    assert (out / "report.md").read_text().startswith("# arithmetic: finished\n")


def test_a_second_report_does_not_count_the_first_as_a_stage(write_run, tmp_path):
    run = write_run()
    report(run, tmp_path)
    assert any(record.stage == "report" for record in run.store.run_records(run.run_id))
    summary = json.loads((report(run, tmp_path) / "summary.json").read_text())
    assert "report" not in {row["stage"] for row in summary["stages"]}


def test_a_run_that_failed_before_its_first_round_is_reported(write_run, tmp_path):
    out = report(write_run(fail_at="sft"), tmp_path)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["errors"][0]["stage"] == "sft"
    assert "sft failed" in (out / "report.html").read_text()


def test_two_stages_that_wrote_the_same_artifact_are_both_shown(write_run, tmp_path):
    run = write_run()
    records = {record.title: record for record in run.store.run_records(run.run_id)}
    same = records["evaluate - after"].model_copy(update={"outputs": records["evaluate - before"].outputs})
    run.store.put_run_record(same)
    summary = json.loads((report(run, tmp_path) / "summary.json").read_text())
    assert "within noise (+0.0 points" in summary["headline"]


def test_what_is_lost_from_the_store_is_said_and_the_rest_is_shown(write_run, tmp_path):
    run = write_run()
    records = run.store.run_records(run.run_id)
    rewards = next(record for record in records if record.title == "round 1 - reward")
    manifest = run.store.get_manifest(rewards.outputs["rewards"])
    (tmp_path / "store" / "blobs" / "sha256" / manifest.blobs[0].sha256).unlink()
    lost = next(record for record in records if record.title == "round 2 - logprob").outputs["logprobs"]
    (tmp_path / "store" / "manifests" / f"{lost}.json").unlink()
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    page = (report(run, tmp_path) / "report.html").read_text()
    assert manifest.blobs[0].sha256 in page
    assert f"{lost}.json" in page
    assert "<b>Entropy</b>" in page
    assert "not in the store" in page


def test_a_dead_mlflow_does_not_fail_the_report(write_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:s3cret@127.0.0.1:9")
    assert (report(write_run(), tmp_path) / "report.html").exists()
    said = capsys.readouterr().out
    assert "http://127.0.0.1:9 cannot be reached" in said
    assert "records are left for the next sync" in said
    assert "s3cret" not in said


def test_mlflow_gets_headline_report_and_the_final_policy(write_run, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    # Without a server, MLflow puts artifacts into the working directory.
    monkeypatch.chdir(tmp_path)
    run = write_run()
    report(run, tmp_path)
    (version,) = MlflowClient(uri).search_model_versions(f"name = '{run.config.name}'")
    (last,) = [found for found in run.store.run_records(run.run_id) if (found.stage, found.round) == ("update", 2)]
    assert version.tags["burnish.policy"] == last.outputs["updated_policy"]
    tracked = MlflowClient(uri).get_run(version.run_id)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.tags["mlflow.note.content"].startswith("**pass@1 went from ")
    files = {file.path for file in MlflowClient(uri).list_artifacts(version.run_id)}
    assert files == {"report.html", "config.yaml"}
