import pytest

from burnish.cli.console import Ending
from burnish.cli.home import Home
from burnish.cli.local_run import LocalEnd
from burnish.cli.run import _conclude
from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.errors import BurnishError

BEGAN = 1000.0
QUIET = Ending(None, None)


def record(stage, at, *, round=None, error=None, verdict=None, skipped=False, **metrics):
    outputs = {"updated_verdict": MANIFESTS.add(verdict)} if verdict else {}
    return StageRecord(
        run_id="r", stage=stage, round=round, key="0", started_at=at, finished_at=at + 1, error=error,
        outputs=outputs, skipped=skipped, metrics=metrics,
    )  # fmt: skip


class _Manifests(dict):
    def add(self, metadata):
        manifest = Manifest(kind="verdict", blobs=[], lineage=Lineage(stage="update"), metadata=metadata)
        self[manifest.digest] = manifest
        return manifest.digest


MANIFESTS = _Manifests()


def conclude(tmp_path, records, status=1, ending=QUIET):
    return _conclude(LocalEnd(status, ending, records, BEGAN), MANIFESTS, tmp_path, Home(tmp_path))


def test_an_error_of_this_attempt_is_the_last_line(tmp_path):
    records = [record("validate", 1001), record("sft", 1002, error="no rows")]
    with pytest.raises(BurnishError, match=r"^sft: no rows$"):
        conclude(tmp_path, records)


def test_an_error_that_an_earlier_attempt_left_is_not_reported(tmp_path):
    """The earlier attempt failed in sft; this one was killed in validate, before it got that far."""
    records = [record("sft", 900, error="no rows"), record("validate", 1001)]
    with pytest.raises(BurnishError, match=r"^validate ended without a result") as caught:
        conclude(tmp_path, records, ending=Ending("validate", None))
    assert "no rows" not in str(caught.value)
    with pytest.raises(BurnishError, match=r"^validate: tasks are missing$"):
        conclude(tmp_path, [*records, record("validate", 1002, error="tasks are missing")])


def test_of_two_errors_the_one_of_this_attempt_counts(tmp_path):
    records = [record("round 1 - reward", 900, error="old"), record("evaluate", 1003, error="new")]
    with pytest.raises(BurnishError, match=r"^evaluate: new$"):
        conclude(tmp_path, records)


def test_a_run_that_was_stopped_says_so_and_why(tmp_path, capsys):
    reason = "kl 3.2 is above 0.5 (10 x its baseline) in 3 of 5 steps: raise update.kl.coef"
    records = [
        record("update", 1001, round=1, verdict={"status": "ok", "reasons": []}),
        record("update", 1002, round=2, verdict={"status": "stop", "reasons": [reason], "stopped": True}),
        *(record("update", 1003 + round, round=round, skipped=True) for round in (3, 4)),
    ]
    assert conclude(tmp_path, records, status=0) == 0
    shown = capsys.readouterr().out
    assert "stopped after round 2, rounds 3 to 4 left out" in shown
    assert reason in " ".join(shown.split())


def test_warnings_and_rollbacks_are_shown_by_round(tmp_path, capsys):
    records = [
        record("update", 1001, round=1, verdict={"status": "warn", "reasons": ["ess 0.1 is below 0.5"]}),
        record("update", 1002, round=2, verdict={"status": "rolled_back", "reasons": ["kl 9 is above 0.5"]}),
    ]
    assert conclude(tmp_path, records, status=0) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "round 1: warning: ess 0.1 is below 0.5" in shown
    assert "round 2: rolled back: kl 9 is above 0.5" in shown
    assert "stopped" not in shown


def test_a_run_without_anything_to_say_says_nothing_about_verdicts(tmp_path, capsys):
    records = [record("update", 1001, round=1, verdict={"status": "ok", "reasons": []})]
    assert conclude(tmp_path, records, status=0) == 0
    shown = capsys.readouterr().out
    for word in ("warning", "stopped", "rolled"):
        assert word not in shown
