import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.report.charts import draw, format_value, ticks, unbroken
from burnish.report.curves import Chart, Line, charts
from burnish.report.run import RunView


def record(round: int, metrics: dict, series: list | None = None) -> StageRecord:
    return StageRecord(run_id="r", stage="update", round=round, key="0", metrics=metrics, series=series or [])


def test_a_missing_value_is_a_gap_in_the_line_and_not_a_zero():
    line = Line("kl", [(1, 0.5), (2, 0.6), (3, None), (4, 0.8), (5, 0.9)])
    assert unbroken(line) == [[(1, 0.5), (2, 0.6)], [(4, 0.8), (5, 0.9)]]
    drawn = draw(Chart("KL", [line]))
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 4


def test_a_chart_without_any_value_is_not_drawn():
    assert draw(Chart("KL", [Line("kl", [(1, None)])])) == ""


def test_a_single_value_and_equal_values_are_drawn():
    assert draw(Chart("a", [Line("a", [(1, 0.0)])])).count("<circle") == 1
    assert draw(Chart("a", [Line("a", [(1, 1e-5), (2, 1e-5)])])).count("<polyline") == 1


@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=30))
def test_every_point_lies_inside_the_drawing(values):
    drawn = draw(Chart("any", [Line("any", list(enumerate(values)))]))
    for x, y in re.findall(r'<circle class="dot c0" cx="([-\d.]+)" cy="([-\d.]+)"', drawn):
        assert 0 <= float(x) <= 360
        assert 0 <= float(y) <= 190


@given(st.floats(-1e6, 1e6), st.floats(1e-5, 1e6))
def test_ticks_are_inside_the_range_and_there_are_at_least_two(low, share):
    # A chart never zooms in further than a millionth of its values.
    span = max(share, 1e-5 * abs(low))
    high = low + span
    found = ticks(low, high, 5)
    assert 2 <= len(found) <= 7
    assert low - 1e-6 * span - 1e-9 <= found[0]
    assert found[-1] <= high + 1e-6 * span + 1e-9


def test_ticks_of_tiny_values_do_not_collapse_to_zero():
    assert ticks(0.5e-14, 6e-14, 5) == [2e-14, 4e-14, 6e-14]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "share", "25%"),
        (1e-5, "", "1e-5"),
        (1.05e-5, "", "1.05e-5"),
        (3e5, "", "3e5"),
        (0.0, "", "0"),
        (1234.0, "", "1234"),
        (0.12345, "", "0.123"),
    ],
)
def test_numbers_are_short(value, unit, text):
    assert format_value(value, unit) == text


def test_a_series_row_without_a_key_is_missing_there():
    records = [record(1, {}, [{"step": 0.0, "loss": 1.0}, {"step": 1.0}, {"step": 2.0, "loss": 3.0}])]
    first, _ = charts(RunView("r", RunConfig(), records))
    loss = next(chart for chart in first if chart.title == "Loss")
    assert loss.lines[0].points == [(0.0, 1.0), (1.0, None), (2.0, 3.0)]
    assert loss.x_title == "step"


def test_what_steps_measure_once_a_round_is_a_line_by_round():
    def steps(first: float) -> list:
        return [{"step": first, "negative_gradient_share": 0.4, "loss": 1.0}, {"step": first + 1, "loss": 2.0}]

    records = [record(round, {"negative_gradient_share": 0.4, "loss": 1.5}, steps(2.0 * round)) for round in (1, 2)]
    shown = {chart.title: chart for chart in charts(RunView("r", RunConfig(), records))[0]}
    assert shown["Gradient of failures"].lines[0].points == [(1.0, 0.4), (2.0, 0.4)]
    assert shown["Gradient of failures"].x_title == "round"
    assert shown["Loss"].x_title == "step"


def test_a_round_that_was_left_out_is_no_point_of_a_curve():
    records = [record(1, {"loss": 0.1}), record(2, {"loss": 0.2}), record(3, {}).model_copy(update={"skipped": True})]
    first, _ = charts(RunView("r", RunConfig(), records))
    assert first[0].lines[0].points == [(1.0, 0.1), (2.0, 0.2)]


def test_metrics_nobody_asked_for_by_name_are_still_shown():
    records = [record(1, {"novel": 1.0, "loss": 0.1}), record(2, {"novel": 2.0, "loss": None})]
    first, rest = charts(RunView("r", RunConfig(), records))
    assert [chart.title for chart in first] == ["Loss"]
    assert first[0].lines[0].points == [(1.0, 0.1), (2.0, None)]
    assert [chart.title for chart in rest] == ["update: novel"]
