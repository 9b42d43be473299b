import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.filters import length_outliers, repeated_share


def test_lengths_beyond_the_quantile_are_outliers():
    assert length_outliers(list(range(1, 101)), quantile=0.99) == [False] * 99 + [True]
    assert length_outliers([10, 20, 30, 40], quantile=0.5) == [False, False, True, True]


def test_lengths_many_deviations_above_the_median_are_outliers():
    # Median 12, absolute deviations 2 1 0 1 88: their median is 1.
    assert length_outliers([10, 11, 12, 13, 100], mad=5) == [False] * 4 + [True]
    assert length_outliers([10, 11, 12, 13, 18], mad=5) == [False] * 4 + [True]
    assert length_outliers([10, 11, 12, 13, 17], mad=5) == [False] * 5


def test_where_most_are_equally_long_one_token_more_is_no_outlier_but_a_runaway_is():
    assert length_outliers([64] * 6 + [65, 500], mad=5) == [False] * 7 + [True]


def test_a_short_answer_is_never_an_outlier():
    assert length_outliers([1, 500, 500, 501, 502], quantile=0.99, mad=1)[0] is False


def test_both_tests_count_and_none_turns_them_off():
    lengths = [10, 10, 10, 12, 30]
    assert length_outliers(lengths) == [False] * 5
    assert length_outliers(lengths, mad=3) == [False] * 4 + [True]
    assert length_outliers(lengths, quantile=0.5, mad=3) == [False] * 3 + [True] * 2
    assert length_outliers([], quantile=0.5, mad=3) == []


@given(st.lists(st.integers(1, 9), min_size=1), st.sampled_from([0.5, 0.9]), st.randoms(use_true_random=False))
def test_the_order_of_lengths_does_not_matter(lengths, quantile, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    plain = length_outliers(lengths, quantile, 2.0)
    assert length_outliers([lengths[at] for at in order], quantile, 2.0) == [plain[at] for at in order]


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ([1, 2, 3, 4], 2, 0.0),
        ([1, 1, 1, 1], 1, 0.75),
        ([1, 2, 1, 2, 1], 2, 0.5),
        ([7] * 101, 2, 0.99),
        ([1, 2], 4, 0.0),
        ([], 1, 0.0),
    ],
)
def test_the_repeated_share_counts_n_grams_that_occurred_before(tokens, n, share):
    assert repeated_share(tokens, n) == pytest.approx(share)
