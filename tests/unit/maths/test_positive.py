import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.positive import amplify_positive, negative_floor_mask, negative_keep, positive_nll_weights


def test_only_positive_advantages_are_amplified():
    assert amplify_positive(torch.tensor([2.0, -1.0, 0.0]), 1.5).tolist() == [3.0, -1.0, 0.0]


def kept(advantages, share, seed=0, groups=None, order=None):
    count = len(advantages)
    order = order or list(range(count))
    groups = groups or ["g"] * count
    keep = negative_keep(
        torch.tensor([advantages[row] for row in order]),
        [groups[row] for row in order],
        [f"s{row}" for row in order],
        share,
        seed,
    )
    return {row for row, inside in zip(order, keep.tolist(), strict=True) if inside}


def test_a_share_of_the_negative_samples_stays_in_every_group_and_all_others_do():
    advantages = [1.0, 0.0] + [-1.0] * 4 + [1.0] + [-0.5] * 2
    groups = ["a"] * 6 + ["b"] * 3
    chosen = kept(advantages, 0.5, groups=groups)
    assert {0, 1, 6} <= chosen
    assert len(chosen & {2, 3, 4, 5}) == 2
    assert len(chosen & {7, 8}) == 1


@pytest.mark.parametrize(("share", "count"), [(1.0, 5), (0.5, 3), (0.1, 1), (0.01, 1), (0.0, 0)])
def test_the_number_is_rounded_but_a_group_keeps_one_unless_the_share_is_zero(share, count):
    assert len(kept([-1.0] * 5, share)) == count


@given(st.permutations(range(8)), st.integers(0, 5))
def test_the_choice_follows_from_seed_and_id_not_from_the_order_of_rows(order, seed):
    advantages = [-1.0, 1.0] * 4
    assert kept(advantages, 0.5, seed, order=order) == kept(advantages, 0.5, seed)


def test_another_seed_makes_another_choice():
    assert len({frozenset(kept([-1.0] * 8, 0.5, seed)) for seed in range(10)}) > 1


def test_unlikely_tokens_of_negative_samples_are_not_trained():
    logprobs = torch.tensor([[0.9, 0.005], [0.005, 0.5]]).log()
    advantages = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    assert negative_floor_mask(mask, logprobs, advantages, 0.01).tolist() == [[True, False], [True, False]]
    assert negative_floor_mask(mask, logprobs, advantages, 0.0).tolist() == (mask == 1).tolist()


def test_positive_likelihood_is_a_mean_over_all_positive_tokens_of_the_step():
    advantages = torch.tensor([[1.0] * 3, [-1.0] * 3, [0.5] * 3, [0.0] * 3])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    weights = positive_nll_weights(advantages, mask)
    assert weights.tolist() == [[0.25] * 3, [0.0] * 3, [0.25, 0.0, 0.0], [0.0] * 3]


def test_without_a_positive_sample_there_is_no_likelihood_loss():
    assert not positive_nll_weights(-torch.ones(2, 3), torch.ones(2, 3)).any()
