import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.contracts.algorithm import CollapseConfig
from burnish.maths.collapse import REMEDY, detect, trimmed
from burnish.maths.collapse_limits import START_STEPS, best_reward

SETTINGS = CollapseConfig()
FIXTURES = Path(__file__).parent / "fixtures"


def healthy(steps=60, seed=0, **changed):
    """Rows of a run that learns: noisy, reward rising to a plateau, entropy falling a little, KL growing.

    `changed` maps a series to a function of the step (from 0) and the healthy value.
    """
    chance = random.Random(seed)
    rows = []
    for step in range(steps):
        progress = 1 - math.exp(-step / 20)
        row = {
            "step": step + 1.0,
            "reward": 0.2 + 0.6 * progress + chance.gauss(0, 0.04),
            "entropy": 1.2 - 0.6 * progress + chance.gauss(0, 0.03),
            "kl": 0.06 * progress + abs(chance.gauss(0, 0.003)),
            "loss": chance.gauss(0, 0.05),
            "grad_norm": math.exp(chance.gauss(-0.5, 0.3)),
            "response_length": 120 + 60 * progress + chance.gauss(0, 6),
            "truncated_share": 0.05,
            "clip_fraction": 0.02,
            "ess": 0.998,
            "mismatch": 0.01,
        }
        for name, change in changed.items():
            row[name] = change(step, row[name])
        rows.append(row)
    return rows


def after(at, change):
    """Healthy before step `at`, `change(steps since)` of the healthy value after it."""
    return lambda step, value: value if step < at else change(step - at, value)


def first_trip(rows, settings=SETTINGS):
    """The step (from 1) at which the detector says collapsed; None when it never does."""
    return next((n for n in range(1, len(rows) + 1) if detect(rows[:n], settings).status == "collapsed"), None)


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_noisy_run_is_never_called_a_collapse(seed):
    assert first_trip(healthy(steps=120, seed=seed)) is None


def test_a_healthy_run_ends_without_a_reason():
    finding = detect(healthy(), SETTINGS)
    assert (finding.status, finding.reasons) == ("ok", [])


COLLAPSES = {
    "entropy fell to nothing": ("entropy", after(40, lambda n, v: v * 0.6**n), {"reward": after(40, lambda n, v: 0.6)}),
    "entropy exploded": ("entropy", after(40, lambda n, v: v * 1.5**n), {}),
    "KL ran away": ("kl", after(40, lambda n, v: v * 2**n), {}),
    "reward fell": ("reward", after(40, lambda n, v: v * 0.5**n), {}),
    "loss jumped": ("loss", after(40, lambda n, v: 5.0), {}),
    "gradients exploded": ("grad_norm", after(40, lambda n, v: v * 3**n), {}),
    "length exploded": ("response_length", after(40, lambda n, v: v * 1.4**n), {}),
    "responses vanished": ("response_length", after(40, lambda n, v: v * 0.5**n), {}),
    "weights of the correction concentrated": ("ess", after(40, lambda n, v: 0.3), {}),
    "sampler and trainer drifted apart": ("mismatch", after(40, lambda n, v: 0.2), {}),
    "most tokens were clipped": ("clip_fraction", after(40, lambda n, v: 0.7), {}),
    "responses hit the limit while the reward fell": (
        "truncated_share",
        after(40, lambda n, v: 0.9),
        {"reward": after(40, lambda n, v: v - 0.06 * n)},
    ),
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_collapse_trips_within_ten_steps_and_names_its_series(name):
    series, change, others = COLLAPSES[name]
    rows = healthy(**{series: change, **others})
    trip = first_trip(rows)
    assert trip is not None
    assert 40 < trip <= 50
    reasons = detect(rows[:trip], SETTINGS).reasons
    (line,) = (reason for reason in reasons if reason.startswith(f"{series} "))
    assert REMEDY[series] in line
    assert "\n" not in line


@pytest.mark.parametrize("series", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_or_gradient_that_is_not_finite_trips_at_once(series, value):
    for rows in (healthy(30), []):
        finding = detect([*rows, {series: value}], SETTINGS)
        assert finding.status == "collapsed"
        assert finding.reasons[0].startswith(f"{series} is {value}")


def test_a_slow_drift_of_the_reward_trips_though_no_step_jumps():
    rows = healthy(200, reward=after(60, lambda n, v: v - 0.005 * n))
    trip = first_trip(rows)
    assert trip is not None
    assert trip > 100
    assert "x its best average" in detect(rows[:trip], SETTINGS).reasons[0]


def test_a_reward_that_jumps_up_does_not_trip():
    for at in (1, 5, 30):
        rows = healthy(80, reward=lambda step, v, at=at: v * 0.05 if step < at else v)
        assert first_trip(rows) is None


def test_a_lucky_first_step_is_no_best_to_fall_from():
    assert first_trip(healthy(reward=lambda step, v: 1.0 if step == 0 else v)) is None


def test_sparse_noisy_rewards_do_not_trip():
    chance = random.Random(3)
    rows = healthy(200, reward=lambda step, v: chance.choice([0.0, 0.0, 0.03, 0.06, 0.12]))
    assert first_trip(rows) is None


def test_entropy_that_falls_while_the_reward_rises_is_learning():
    rows = healthy(60, entropy=lambda step, v: 1.2 * 0.93**step, reward=lambda step, v: min(1.0, 0.05 + step / 50))
    assert first_trip(rows) is None
    flat = healthy(60, entropy=lambda step, v: 1.2 * 0.93**step, reward=lambda step, v: 0.3)
    assert first_trip(flat) is not None


def test_one_bad_step_is_a_warning_and_passes():
    rows = healthy(50, grad_norm=lambda step, v: 40.0 if step == 30 else v)
    assert [detect(rows[:n], SETTINGS).status for n in (30, 31, 35, 36)] == ["ok", "warn", "warn", "ok"]


def test_violations_of_different_series_add_up():
    rows = healthy(40)
    for row, (name, value) in zip(rows[-3:], [("ess", 0.1), ("mismatch", 0.5), ("clip_fraction", 0.9)], strict=True):
        row[name] = value
    finding = detect(rows, SETTINGS)
    assert finding.status == "collapsed"
    assert [reason.split()[0] for reason in finding.reasons] == ["ess", "mismatch", "clip_fraction"]
    assert all("in 1 of 5 steps" in reason for reason in finding.reasons)


def test_a_constant_series_does_not_make_rounding_an_alarm():
    rows = [
        dict.fromkeys(REMEDY, 0.5) | {"reward": 1.0, "kl": 0.0, "ess": 1.0, "mismatch": 0.0, "clip_fraction": 0.0}
    ] * 30
    nudged = {name: value + 1e-6 for name, value in rows[0].items()}
    assert detect([*rows, nudged, nudged, nudged], SETTINGS).status == "ok"


def test_what_was_not_measured_is_no_violation():
    assert detect([dict.fromkeys(REMEDY)] * 40, SETTINGS).status == "ok"
    assert detect([{}] * 40, SETTINGS).status == "ok"
    gaps = [row if step % 3 else dict.fromkeys(row) for step, row in enumerate(healthy(80))]
    assert first_trip(gaps) is None
    gaps[-9:] = [row | {"kl": 2.0} for row in gaps[-9:]]
    assert detect(gaps, SETTINGS).status == "collapsed"


def test_short_histories_have_absolute_limits_only():
    assert detect([], SETTINGS).status == "ok"
    assert detect(healthy(1), SETTINGS).status == "ok"
    assert first_trip(healthy(3, loss=lambda step, v: 10.0 * step)) is None
    assert first_trip(healthy(3, ess=lambda step, v: 0.1)) == 3


def test_thresholds_are_those_of_the_settings():
    rows = healthy(clip_fraction=after(40, lambda n, v: 0.4))
    assert first_trip(rows) is None
    assert first_trip(rows, CollapseConfig(clip_max=0.3)) == 43
    assert first_trip(rows, CollapseConfig(clip_max=0.3, patience=1)) == 41
    rows = healthy(grad_norm=after(40, lambda n, v: 10.0))
    assert first_trip(rows) == 43
    assert first_trip(rows, CollapseConfig(z=1000)) is None


def test_the_recorded_healthy_run_is_quiet_at_every_step():
    rows = recorded("healthy_run")
    assert {detect(rows[:n], SETTINGS).status for n in range(1, len(rows) + 1)} == {"ok"}


def test_a_recorded_run_that_learns_roughly_has_warnings_at_most():
    rows = recorded("rough_run")
    assert first_trip(rows) is None
    assert rows[-1]["reward"] > 1.5 * rows[0]["reward"]


@pytest.mark.parametrize(("name", "at", "floor_at"), [("runaway_learning_rate", 6, 25), ("runaway_without_kl", 11, 25)])
def test_the_recorded_collapse_trips_before_the_reward_is_at_its_floor(name, at, floor_at):
    """Both learned with a tenfold rate on the tiny model; the reward fell from 0.48 to below 0.1."""
    rows = recorded(name)
    assert first_trip(rows) == at
    assert next(row["step"] for row in rows if row["reward"] < 0.1) == floor_at


def recorded(name):
    return json.loads((FIXTURES / f"{name}.json").read_text())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 80), st.sampled_from(sorted(COLLAPSES)), st.integers(5, 20))
def test_a_trimmed_history_is_judged_like_the_whole_one(kept, name, window):
    """Start, last window and best reward are all that later steps are measured against."""
    chosen = CollapseConfig(window=window)
    series, change, others = COLLAPSES[name]
    rows = healthy(80, **{series: change, **others})
    short = trimmed(rows[:kept], chosen)
    assert len(short) <= START_STEPS + window + 2 * chosen.recent
    for end in range(kept, len(rows) + 1):
        assert detect(short + rows[kept:end], chosen).status == detect(rows[:end], chosen).status


def test_the_best_reward_outlives_the_rows_it_came_from():
    rows = [{"reward": 0.9}] * 20 + [{"reward": 0.5}] * 80
    assert best_reward(trimmed(rows, SETTINGS), SETTINGS) == pytest.approx(0.9)
