"""Records of shards beside that of the whole: figures count once, times and pods are all there."""

import io

from rich.console import Console

from burnish.cli import summary
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.report.curves import charts
from burnish.report.figures import Figures
from burnish.report.run import RunView
from burnish.report.timing import run_time
from burnish.track.points import load_points, metric_points


def record(shard="", samples=24.0, started=0.0, seconds=10.0):
    return StageRecord(
        run_id="r", stage="rollout", round=1, shard=shard, key="k", metrics={"samples": samples},
        started_at=started, finished_at=started + seconds, timings={"total": seconds, "compute": seconds},
        peak_memory_mb=100.0, load=[{"time": 1.0, "memory_mb": 5.0}],
    )  # fmt: skip


RECORDS = [record("1/2", 12.0), record("2/2", 12.0, seconds=14.0), record(started=15.0, seconds=1.0)]


def test_what_shards_measured_is_no_point_of_its_own_and_pods_do_not_mix():
    names = [{name for name, _, _ in metric_points(one, 1)} for one in RECORDS]
    assert names[1] == {"time/rollout/shard_2", "memory_mb/rollout/shard_2"}
    assert names[2] == {"rollout/samples", "time/rollout", "memory_mb/rollout"}
    assert [point[0] for one in RECORDS for point in load_points(one, 0)] == [
        "system/rollout/shard_1/memory_mb", "system/rollout/shard_2/memory_mb", "system/rollout/memory_mb",
    ]  # fmt: skip


def test_curves_and_diagnoses_have_one_value_a_round_and_the_timeline_every_pod():
    view = RunView("r", RunConfig(), [*RECORDS, *(one.model_copy(update={"round": 2}) for one in RECORDS)])
    assert Figures(view).by_round("rollout", "samples") == [24.0, 24.0]
    (samples,) = [chart for chart in charts(view)[1] if "samples" in chart.title]
    assert [point for line in samples.lines for point in line.points] == [(1.0, 24.0), (2.0, 24.0)]
    assert [stage.record.title for stage in run_time(RECORDS).stages] == [
        "round 1 - rollout 1/2", "round 1 - rollout 2/2", "round 1 - rollout",
    ]  # fmt: skip


def test_the_summary_shows_the_whole_and_the_seconds_of_all_pods(monkeypatch):
    lengths = [
        one.model_copy(update={"metrics": {"response_length_mean": length}})
        for one, length in zip(RECORDS, (1.0, 2.0, 7.0), strict=True)
    ]
    out = io.StringIO()
    monkeypatch.setattr(summary, "Console", lambda **given: Console(file=out, width=100, **given))
    summary.print_summary(lengths)
    assert " ".join(out.getvalue().split()).endswith("1 - - - 7 - - 25")
