import math
from itertools import pairwise
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.contracts.errors import ConfigError
from burnish.maths.advantages import (
    gdpo_advantages,
    group_advantages,
    maxrl_advantages,
    opo_advantages,
    rloo_advantages,
    whitened_group_advantages,
)

GOLDEN = torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64)
LENGTHS = [2, 4, 6, 3]
ONE_GROUP = ["g"] * 4


def _opo(rewards, group_ids):
    return opo_advantages(rewards, group_ids, [3] * len(rewards))


def _gdpo(rewards, group_ids):
    return gdpo_advantages(torch.stack([rewards, rewards.abs()], dim=1), [1.0, 0.5], group_ids)


ESTIMATORS = {
    "group": lambda rewards, ids: group_advantages(rewards, ids, "group"),
    "batch": lambda rewards, ids: group_advantages(rewards, ids, "batch"),
    "none": lambda rewards, ids: group_advantages(rewards, ids, "none"),
    "rloo": rloo_advantages,
    "maxrl": maxrl_advantages,
    "opo": _opo,
    "whitened": whitened_group_advantages,
    "gdpo": _gdpo,
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)


@pytest.mark.parametrize(
    ("std", "epsilon", "expected"),
    [
        ("group", 1e-6, [1.305580, -0.783348, -0.783348, 0.261116]),
        ("group", 1e-4, [1.305310, -0.783186, -0.783186, 0.261062]),
        ("none", 1e-6, [0.625, -0.375, -0.375, 0.125]),
    ],
)
def test_golden_group_advantages(std, epsilon, expected):
    advantages = group_advantages(GOLDEN, ONE_GROUP, std, epsilon)
    assert advantages.values.tolist() == pytest.approx(expected, abs=1e-6)
    assert advantages.values.dtype == torch.float32


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        (rloo_advantages(GOLDEN, ONE_GROUP), [0.833333, -0.5, -0.5, 0.166667]),
        (maxrl_advantages(GOLDEN, ONE_GROUP), [1.666667, -1.0, -1.0, 0.333333]),
        (opo_advantages(GOLDEN, ONE_GROUP, LENGTHS), [0.766667, -0.233333, -0.233333, 0.266667]),
    ],
    ids=["rloo", "maxrl", "opo"],
)
def test_golden_advantages_of_other_baselines(advantages, expected):
    assert advantages.values.tolist() == pytest.approx(expected, abs=1e-6)
    assert advantages.values.dtype == torch.float32


def test_rloo_is_the_reward_minus_the_mean_of_the_others():
    rewards = [0.3, 2.0, -1.0, 0.9, 0.9]
    expected = [reward - fmean(rewards[:at] + rewards[at + 1 :]) for at, reward in enumerate(rewards)]
    assert rloo_advantages(torch.tensor(rewards), ["g"] * 5).values.tolist() == pytest.approx(expected)


def test_batch_std_divides_every_group_by_the_same_number():
    rewards = torch.tensor([1.0, 0.0, 4.0, 0.0])
    advantages = group_advantages(rewards, ["a", "a", "b", "b"], "batch", epsilon=0.0)
    spread = float(rewards.std())
    assert advantages.values.tolist() == pytest.approx([0.5 / spread, -0.5 / spread, 2 / spread, -2 / spread])


def test_whitened_groups_are_centred_in_the_group_and_scaled_by_the_batch():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.5, 0.0, 1.0])
    advantages = whitened_group_advantages(rewards, ["a"] * 4 + ["b"] * 2)
    # Squares of the centred rewards sum to 1.1875; over six samples the unbiased variance is a fifth of that.
    centred = [0.625, -0.375, -0.375, 0.125, -0.5, 0.5]
    assert advantages.values.tolist() == pytest.approx([value / math.sqrt(0.2375) for value in centred], rel=1e-6)


def test_gdpo_normalises_each_component_before_the_weighted_sum():
    correct, brief = [1.0, 0.0, 0.0, 1.0], [100.0, 300.0, 100.0, 500.0]
    advantages = gdpo_advantages(torch.tensor([correct, brief]).T, [1.0, 0.5], ONE_GROUP)

    def normalised(values):
        return [(value - fmean(values)) / (stdev(values) + 1e-6) for value in values]

    total = [a + 0.5 * b for a, b in zip(normalised(correct), normalised(brief), strict=True)]
    expected = [value / math.sqrt(stdev(total) ** 2 + 1e-8) for value in total]
    assert advantages.values.tolist() == pytest.approx(expected, rel=1e-5)


def test_gdpo_keeps_what_a_plain_sum_of_rewards_cannot_tell_apart():
    # Both samples sum to 1, but the first component is the one that is rare in this group.
    components = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    values = gdpo_advantages(components, [1.0, 1.0], ONE_GROUP).values
    assert values[0] != values[1]
    assert group_advantages(components.sum(1), ONE_GROUP, "group").values[0] == pytest.approx(
        group_advantages(components.sum(1), ONE_GROUP, "group").values[1].item()
    )


def test_a_component_that_is_missing_for_one_sample_does_not_poison_the_others():
    components = torch.tensor([[1.0, math.nan], [0.0, 1.0], [1.0, 0.0], [math.nan, math.nan]])
    advantages = gdpo_advantages(components, [1.0, 1.0], ONE_GROUP)
    assert advantages.values.isfinite().all()
    assert advantages.missing.tolist() == [False, False, False, True]
    assert advantages.values[3] == 0.0
    # Row 0 counts through its first component alone, which is as good as that of row 2; row 2 loses by its second.
    assert advantages.values[0] > 0
    assert advantages.values[0] > advantages.values[2]


def test_gdpo_ignores_a_component_of_weight_zero_even_where_it_is_the_only_one_that_differs():
    components = torch.tensor([[1.0, 5.0], [1.0, 9.0]])
    advantages = gdpo_advantages(components, [1.0, 0.0], ["g", "g"])
    assert advantages.values.tolist() == [0.0, 0.0]
    assert advantages.no_signal.all()


@every_estimator
def test_a_missing_reward_leaves_the_statistics_of_the_others_alone(estimator):
    advantages = estimator(torch.tensor([1.0, math.nan, 0.0, 1.0, 3.0, 2.0]), ["g"] * 4 + ["h"] * 2)
    without = estimator(torch.tensor([1.0, 0.0, 1.0, 3.0, 2.0]), ["g"] * 3 + ["h"] * 2)
    assert advantages.values[[0, 2, 3, 4, 5]].tolist() == without.values.tolist()
    assert advantages.values[1] == 0.0
    assert advantages.missing.tolist() == [False, True, False, False, False, False]


@every_estimator
def test_an_infinite_reward_is_as_good_as_missing(estimator):
    advantages = estimator(torch.tensor([1.0, math.inf, 0.0]), ["g"] * 3)
    assert advantages.missing.tolist() == [False, True, False]
    assert advantages.values.isfinite().all()


@every_estimator
@settings(max_examples=25)
@given(reward=st.floats(0, 1e6), size=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(estimator, reward, size):
    # 0.1 summed nine times and divided by nine is not 0.1: the mean must not leak rounding into the advantage.
    rewards = torch.tensor([reward] * size + [0.0, 1.0], dtype=torch.float32)
    advantages = estimator(rewards, ["equal"] * size + ["other"] * 2)
    assert advantages.values[:size].tolist() == [0.0] * size
    assert advantages.no_signal.tolist() == [True] * size + [False] * 2


@every_estimator
def test_rounding_noise_is_not_a_signal(estimator):
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.6 - 0.3], dtype=torch.float64)
    assert len(set(rewards.tolist())) > 1
    advantages = estimator(rewards, ONE_GROUP)
    assert advantages.values.tolist() == [0.0] * 4
    assert advantages.no_signal.all()


@every_estimator
def test_a_batch_in_which_no_group_has_a_signal_gives_zero_and_says_so(estimator):
    advantages = estimator(torch.ones(6), ["a"] * 3 + ["b"] * 3)
    assert advantages.values.tolist() == [0.0] * 6
    assert advantages.no_signal.all()


@every_estimator
def test_a_group_of_one_and_a_group_of_missing_rewards_have_no_signal(estimator):
    advantages = estimator(torch.tensor([3.0, math.nan, math.nan]), ["one", "none", "none"])
    assert advantages.values.tolist() == [0.0] * 3
    assert advantages.no_signal.all()


@every_estimator
def test_an_empty_batch_has_no_advantages(estimator):
    assert estimator(torch.zeros(0), []).values.shape == (0,)


@every_estimator
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 0.3, 1.0, math.nan])), min_size=1, max_size=12
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_rows_changes_no_bit(estimator, rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = estimator(torch.tensor([reward for _, reward in rows]), [group for group, _ in rows])
    shuffled = estimator(torch.tensor([rows[at][1] for at in order]), [rows[at][0] for at in order])
    assert shuffled.values.tolist() == plain.values[order].tolist()
    assert shuffled.no_signal.tolist() == plain.no_signal[order].tolist()


rewards_strategy = st.lists(st.integers(0, 8).map(lambda eighths: eighths / 8), min_size=2, max_size=8)


@settings(max_examples=25)
@given(rewards_strategy, st.sampled_from([0.5, 2.0, 16.0]))
def test_scaling_the_rewards_leaves_normalised_advantages_alone(rewards, factor):
    plain, scaled = torch.tensor(rewards), torch.tensor(rewards) * factor
    ids = ["g"] * len(rewards)
    for name in ("group", "batch", "maxrl", "whitened", "gdpo"):
        torch.testing.assert_close(
            ESTIMATORS[name](scaled, ids).values, ESTIMATORS[name](plain, ids).values, atol=1e-4, rtol=1e-4
        )


@settings(max_examples=25)
@given(rewards_strategy, st.sampled_from([-3.0, 1.0, 64.0]))
def test_shifting_the_rewards_leaves_centred_advantages_alone(rewards, shift):
    plain, shifted = torch.tensor(rewards), torch.tensor(rewards) + shift
    ids = ["g"] * len(rewards)
    for name in ("group", "batch", "none", "rloo", "opo", "whitened"):
        torch.testing.assert_close(
            ESTIMATORS[name](shifted, ids).values, ESTIMATORS[name](plain, ids).values, atol=1e-6, rtol=1e-6
        )


@every_estimator
@settings(max_examples=25)
@given(rewards_strategy)
def test_better_rewards_never_get_smaller_advantages(estimator, rewards):
    values = estimator(torch.tensor(rewards), ["g"] * len(rewards)).values.tolist()
    ranked = sorted(zip(rewards, values, strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(ranked))


@pytest.mark.parametrize("name", ["group", "batch", "none", "rloo", "maxrl", "whitened", "gdpo"])
@settings(max_examples=25)
@given(rewards_strategy)
def test_the_advantages_of_a_complete_group_add_up_to_zero(name, rewards):
    values = ESTIMATORS[name](torch.tensor(rewards), ["g"] * len(rewards)).values
    assert float(values.double().sum()) == pytest.approx(0.0, abs=1e-5)


def test_maxrl_refuses_negative_rewards_because_the_mean_could_turn_the_sign():
    with pytest.raises(ConfigError, match=r"update\.advantage\.estimator: maxrl .* found -1; use estimator=group"):
        maxrl_advantages(torch.tensor([1.0, -1.0]), ["g", "g"])


def test_opo_of_a_group_without_trained_tokens_falls_back_to_the_mean():
    assert opo_advantages(torch.tensor([1.0, 0.0]), ["g", "g"], [0, 0]).values.tolist() == [0.5, -0.5]


@every_estimator
def test_rewards_and_groups_of_different_lengths_are_refused(estimator):
    with pytest.raises(ValueError, match="do not match"):
        estimator(torch.zeros(3), ["g"] * 4)


def test_components_and_weights_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="do not match"):
        gdpo_advantages(torch.zeros(3, 2), [1.0], ["g"] * 3)
