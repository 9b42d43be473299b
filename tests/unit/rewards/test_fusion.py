import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.config import ScorerConfig
from burnish.rewards.fusion import fuse

A, B = ScorerConfig(name="exact"), ScorerConfig(name="format", weight=0.5)
GATE = ScorerConfig(name="format", weight=0.5, gate=True)
SHOWN = ScorerConfig(name="length", weight=0)


@pytest.mark.parametrize(
    ("components", "scorers", "reward"),
    [
        ({"exact": 1.0, "format": 1.0}, [A, B], 1.5),
        ({"exact": None, "format": 1.0}, [A, B], 0.5),
        ({"exact": 0.0, "format": 1.0}, [A, B], 0.5),
        ({"exact": None, "format": None}, [A, B], None),
        ({}, [A, B], None),
        ({"exact": 1.0, "format": 0.0}, [A, GATE], 0.0),
        ({"exact": 1.0, "format": None}, [A, GATE], 1.0),
        ({"exact": 1.0, "format": 0.5}, [A, GATE], 1.25),
        ({"exact": None, "format": 0.0}, [A, GATE], 0.0),
        ({"exact": 1.0, "length": 0.3}, [A, SHOWN], 1.0),
        ({"exact": None, "length": 0.3}, [A, SHOWN], None),
        ({"exact": math.nan, "format": 1.0}, [A, B], 0.5),
        ({"exact": math.inf}, [A], None),
    ],
)
def test_the_weighted_sum_leaves_out_what_is_missing_and_gates_close(components, scorers, reward):
    assert fuse(components, scorers) == reward


def test_a_penalty_is_added_before_the_clip_and_is_no_verdict_of_its_own():
    assert fuse({"exact": 1.0}, [A], penalty=-0.25) == 0.75
    assert fuse({"exact": None}, [A], penalty=-0.25) is None
    assert fuse({"exact": 3.0}, [A], penalty=-1.0, clip=1.0) == 1.0
    assert fuse({"exact": -3.0}, [A], clip=1.0) == -1.0
    assert fuse({"exact": 1.0, "format": 0.0}, [A, GATE], penalty=-1.0) == 0.0


@given(st.dictionaries(st.sampled_from(["exact", "format"]), st.none() | st.floats(-10, 10)), st.permutations([A, B]))
def test_the_order_of_scorers_does_not_matter_and_the_clip_holds(components, scorers):
    reward = fuse(components, scorers, clip=2.0)
    assert reward == fuse(components, [A, B], clip=2.0)
    assert reward is None or -2.0 <= reward <= 2.0
