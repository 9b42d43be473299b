import sys
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.contracts.artifacts import StageRecord

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from synthetic_run import SyntheticRun, open_folder_store, synthetic_config


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BURNISH_HOME", str(tmp_path / "home"))

    def write(**fields):
        run = SyntheticRun(open_folder_store(tmp_path), synthetic_config(rounds=3), **fields)
        run.write()
        return run

    return write


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def rewritten(run, stage, **metrics):
    """Every record of a stage, with other metrics."""
    for record in run.store.run_records(run.run_id):
        if record.stage == stage:
            run.store.put_run_record(record.model_copy(update={"metrics": record.metrics | metrics}))


def test_a_healthy_run_is_said_to_be_healthy(write_run, capsys):
    run = write_run()
    assert call("doctor", "--run", run.run_id) == 0
    shown = capsys.readouterr().out
    assert f"run {run.run_id}: 3 of 3 rounds" in shown
    assert "✓ healthy" in shown


def test_a_sick_run_gets_cause_evidence_and_setting(write_run, capsys):
    run = write_run()
    rewritten(run, "rollout", truncated_share=0.7)
    assert call("doctor", "--run", run.run_id) == 1
    shown = capsys.readouterr().out
    assert "✗ Length limit too small" in shown
    assert "evidence   70% of the late responses hit the limit of 64 tokens" in shown
    assert "change     rollout.max_new_tokens=128" in shown
    assert "docs/stability.md explains each by its name" in shown
    assert "healthy" not in shown


def test_a_failed_stage_comes_first(write_run, capsys):
    run = write_run(fail_at="round 3 - reward")
    assert call("doctor", "--run", run.run_id) == 1
    shown = capsys.readouterr().out
    assert "✗ round 3 - reward failed" in shown
    assert "did you mean 'exact'?" in shown
    assert "2 of 3 rounds" in shown


def test_a_run_that_has_not_trained_yet_is_not_called_healthy(write_run, capsys):
    run = write_run(fail_at="round 1 - rollout")
    assert call("doctor", "--run", run.run_id) == 1
    shown = capsys.readouterr().out
    assert "there is nothing to judge yet" in shown
    assert "healthy" not in shown


def test_without_a_run_id_the_latest_run_of_the_home_is_taken(write_run, tmp_path, capsys):
    run = write_run()
    runs = tmp_path / "home" / "runs"
    (runs / run.run_id).mkdir(parents=True)
    (runs / "latest").symlink_to(run.run_id)
    call("doctor", "--run")
    assert f"run {run.run_id}" in capsys.readouterr().out


def test_an_unknown_run_is_one_line(write_run, capsys):
    write_run()
    assert call("doctor", "--run", "nobody") == 1
    assert capsys.readouterr().err.startswith("error: run 'nobody' left no records in this store")


def test_text_of_a_run_cannot_style_the_terminal(write_run, capsys):
    run = write_run()
    error = "[bold red]not markup[/] \x1b[2J"
    run.store.put_run_record(StageRecord(run_id=run.run_id, stage="sft", key="0", error=error))
    call("doctor", "--run", run.run_id)
    shown = capsys.readouterr().out
    assert "[bold red]not markup[/] [2J" in shown
    assert "\x1b" not in shown
