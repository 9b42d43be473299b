from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.passk import bootstrap_interval, pass_at_k


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [(16, 3, 1, 0.1875), (16, 3, 8, 0.9), (4, 2, 2, 0.833333), (8, 0, 4, 0.0), (4, 4, 2, 1.0)],
)
def test_pass_at_k_golden_values(samples, correct, k, expected):
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(samples, data):
    correct = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    answers = [True] * correct + [False] * (samples - correct)
    subsets = [any(subset) for subset in combinations(answers, k)]
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(samples, correct, k):
    with pytest.raises(ValueError):
        pass_at_k(samples, correct, k)


def test_the_interval_holds_the_mean_and_shrinks_with_more_prompts():
    few, many = [0.0, 1.0] * 8, [0.0, 1.0] * 128
    low, high = bootstrap_interval(few, resamples=2000, seed=1)
    narrow_low, narrow_high = bootstrap_interval(many, resamples=2000, seed=1)
    assert low < 0.5 < high
    # Standard error of a fair coin over 16 prompts is .125: the 95 % interval is about +-.245.
    assert high - low == pytest.approx(0.49, abs=0.07)
    assert narrow_high - narrow_low == pytest.approx((high - low) / 4, abs=0.04)


def test_the_interval_depends_on_the_seed_alone():
    values = [0.0, 0.5, 1.0, 0.25]
    assert bootstrap_interval(values, 200, seed=3) == bootstrap_interval(values, 200, seed=3)
    assert bootstrap_interval([0.25] * 5, 200, seed=3) == (0.25, 0.25)
