import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.advantages import group_advantages

GOLDEN = torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64)
ONE_GROUP = ["g"] * 4


@pytest.mark.parametrize(
    ("std", "epsilon", "expected"),
    [
        ("group", 1e-6, [1.305580, -0.783348, -0.783348, 0.261116]),
        ("group", 1e-4, [1.305310, -0.783186, -0.783186, 0.261062]),
        ("none", 1e-6, [0.625, -0.375, -0.375, 0.125]),
    ],
)
def test_golden_advantages(std, epsilon, expected):
    advantages = group_advantages(GOLDEN, ONE_GROUP, std, epsilon)
    assert advantages.values.tolist() == pytest.approx(expected, abs=1e-6)
    assert advantages.values.dtype == torch.float32


def test_batch_std_divides_every_group_by_the_same_number():
    rewards = torch.tensor([1.0, 0.0, 4.0, 0.0])
    advantages = group_advantages(rewards, ["a", "a", "b", "b"], "batch", epsilon=0.0)
    spread = float(rewards.std())
    assert advantages.values.tolist() == pytest.approx([0.5 / spread, -0.5 / spread, 2 / spread, -2 / spread])


def test_a_missing_reward_leaves_the_mean_and_the_deviation_of_the_others_alone():
    rewards = torch.tensor([1.0, math.nan, 0.0, 1.0])
    advantages = group_advantages(rewards, ONE_GROUP, "group")
    without = group_advantages(torch.tensor([1.0, 0.0, 1.0]), ["g"] * 3, "group")
    assert advantages.values[[0, 2, 3]].tolist() == without.values.tolist()
    assert advantages.values[1] == 0.0
    assert advantages.missing.tolist() == [False, True, False, False]


@pytest.mark.parametrize("std", ["group", "batch", "none"])
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(std, reward, size):
    # 0.1 summed nine times and divided by nine is not 0.1: the mean must not leak rounding into the advantage.
    rewards = torch.tensor([reward] * size + [0.0, 1.0], dtype=torch.float32)
    advantages = group_advantages(rewards, ["equal"] * size + ["other"] * 2, std)
    assert advantages.values[:size].tolist() == [0.0] * size
    assert advantages.no_signal.tolist() == [True] * size + [False] * 2


def test_rounding_noise_is_not_a_signal():
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.6 - 0.3], dtype=torch.float64)
    assert len(set(rewards.tolist())) > 1
    advantages = group_advantages(rewards, ONE_GROUP, "group", epsilon=0.0)
    assert advantages.values.tolist() == [0.0] * 4
    assert advantages.no_signal.all()


def test_a_group_of_one_and_a_group_of_missing_rewards_have_no_signal():
    advantages = group_advantages(torch.tensor([3.0, math.nan, math.nan]), ["one", "none", "none"], "group")
    assert advantages.values.tolist() == [0.0] * 3
    assert advantages.no_signal.all()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.25, 1.0, math.nan])), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.sampled_from(["group", "batch", "none"]),
)
def test_the_order_of_rows_does_not_matter(rows, random, std):
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = group_advantages(torch.tensor([reward for _, reward in rows]), [group for group, _ in rows], std)
    shuffled = group_advantages(torch.tensor([rows[i][1] for i in order]), [rows[i][0] for i in order], std)
    torch.testing.assert_close(shuffled.values, plain.values[order], atol=1e-6, rtol=1e-6)
    assert shuffled.no_signal.tolist() == plain.no_signal[order].tolist()


def test_rewards_and_groups_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="do not match"):
        group_advantages(torch.zeros(3), ["g"] * 4, "group")
