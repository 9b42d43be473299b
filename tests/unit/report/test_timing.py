from burnish.contracts.artifacts import StageRecord
from burnish.report.summary import duration
from burnish.report.timing import run_time


def record(stage: str, started: float, finished: float, compute: float, cached: bool = False) -> StageRecord:
    timings = {"start": 1.0, "compute": compute}
    return StageRecord(
        run_id="r", stage=stage, key="0", started_at=started, finished_at=finished, timings=timings, cached=cached
    )


def test_stages_side_by_side_count_once_in_the_busy_time():
    # Processes ran 0 to 10 and 4 to 14, then 20 to 30.
    time = run_time([record("a", 1, 10, 8), record("b", 5, 14, 9), record("c", 21, 30, 6)])
    assert time is not None
    assert time.wall == 30
    assert time.busy == 24
    assert time.work == 30
    assert time.compute == 23
    assert abs(time.overhead - 7 / 30) < 1e-12
    assert [stage.offset for stage in time.stages] == [0, 4, 20]


def test_a_remembered_stage_took_no_time_in_this_attempt():
    time = run_time([record("old", 0, 1000, 999, cached=True), record("new", 5001, 5010, 8)])
    assert time is not None
    assert time.wall == 10
    assert [stage.record.stage for stage in time.stages] == ["new"]
    assert run_time([record("old", 0, 1000, 999, cached=True)]) is None


def test_durations_read_well():
    assert [duration(seconds) for seconds in (3.21, 59.99, 65, 3661, 7322)] == [
        "3.2 s", "60.0 s", "1 min 05 s", "1 h 01 min", "2 h 02 min",
    ]  # fmt: skip
