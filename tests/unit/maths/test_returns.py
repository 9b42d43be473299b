import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.errors import ContractError
from burnish.maths.returns import (
    adaptive_lambda,
    discounted_returns,
    explained_variance,
    gae,
    token_rewards,
    whiten,
)

MASK = torch.tensor([[1, 1, 0, 0, 1, 1]])
REWARDS = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
# The 9s stand on observations: a value that leaks from there shows.
VALUES = torch.tensor([[0.1, 0.2, 9.0, 9.0, 0.3, 0.4]])


def test_golden_token_rewards_put_the_kl_on_every_token_and_the_score_on_the_last():
    mask = torch.ones(1, 3, dtype=torch.bool)
    rewards = token_rewards(torch.tensor([1.0]), torch.tensor([[0.1, -0.05, 0.2]]), 0.05, mask)
    assert rewards[0].tolist() == pytest.approx([-0.005, 0.0025, 0.99])


def test_the_score_is_on_the_last_trained_token_whatever_follows_it():
    # Row 0 is padded behind its end of sequence, row 1 ends on an observation, row 2 is padded on the left.
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]])
    kl = torch.full((3, 4), 100.0) * (mask == 0)
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0]), kl, 0.1, mask)
    assert rewards.tolist() == [[0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 3]]


def test_a_row_without_trained_tokens_gets_no_reward_and_needs_no_score():
    rewards = token_rewards(torch.tensor([math.nan, 1.0]), None, 0.0, torch.tensor([[0, 0], [1, 0]]))
    assert rewards.tolist() == [[0, 0], [1, 0]]


def test_a_score_that_is_missing_is_refused_and_never_taken_for_zero():
    with pytest.raises(ContractError, match="row 1 is nan"):
        token_rewards(torch.tensor([1.0, math.nan]), None, 0.0, torch.ones(2, 2))


def test_golden_returns_are_carried_through_observations():
    returns = discounted_returns(REWARDS, MASK, gamma=0.9)
    assert returns[0].tolist() == pytest.approx([0.729, 0.81, 0.0, 0.0, 0.9, 1.0], abs=1e-6)


def test_returns_are_not_reset_behind_an_observation():
    # Penalty -1 and -2.71 a turn: the first token must see both turns, as one discount step apart.
    returns = discounted_returns(torch.tensor([[-1.0, 0.0, 0.0, -2.71]]), torch.tensor([[1, 0, 0, 1]]), gamma=0.9)
    assert returns[0].tolist() == pytest.approx([-1.0 - 0.9 * 2.71, 0.0, 0.0, -2.71])


def test_rewards_on_observations_count_for_nothing():
    leaking = REWARDS + 7.0 * (MASK == 0)
    assert torch.equal(discounted_returns(leaking, MASK, 0.9), discounted_returns(REWARDS, MASK, 0.9))
    for leak, plain in zip(gae(leaking, VALUES, MASK, 1, 0.9), gae(REWARDS, VALUES, MASK, 1, 0.9), strict=True):
        assert torch.equal(leak, plain)


def test_golden_generalised_advantages_and_returns():
    advantages, returns = gae(REWARDS, VALUES, MASK, gamma=1.0, lam=0.95)
    kept = MASK == 1
    assert advantages[kept].tolist() == pytest.approx([0.799675, 0.7365, 0.67, 0.6], abs=1e-6)
    assert returns[kept].tolist() == pytest.approx([0.899675, 0.9365, 0.97, 1.0], abs=1e-6)
    assert (advantages[~kept] == 0).all()
    assert (returns[~kept] == 0).all()
    whitened = whiten(advantages, MASK)
    assert whitened[kept].tolist() == pytest.approx([1.141837, 0.406744, -0.367037, -1.181544], abs=1e-5)
    assert (whitened[~kept] == 0).all()


rows = st.lists(
    st.tuples(st.booleans(), st.floats(-2, 2, width=32), st.floats(-2, 2, width=32)), min_size=1, max_size=8
)


@given(rows, st.sampled_from([0.9, 1.0]), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_observations_are_as_good_as_deleted(tokens, gamma, lam):
    kept = torch.tensor([[inside for inside, _, _ in tokens]])
    rewards = torch.tensor([[reward for _, reward, _ in tokens]])
    values = torch.tensor([[value for _, _, value in tokens]])
    short = torch.ones_like(rewards[kept])[None]
    full = gae(rewards, values, kept, gamma, lam)
    deleted = gae(rewards[kept][None], values[kept][None], short, gamma, lam)
    for have, want in zip(full, deleted, strict=True):
        assert torch.equal(have[kept], want[0])
    returns = discounted_returns(rewards, kept, gamma)
    assert torch.equal(returns[kept], discounted_returns(rewards[kept][None], short, gamma)[0])


@given(rows, st.sampled_from([0.9, 1.0]), st.integers(0, 3), st.booleans())
def test_padding_on_either_side_changes_nothing(tokens, gamma, padding, left):
    def padded(column):
        line = [token[column] for token in tokens]
        pad = [0] * padding if column == 0 else [9.0] * padding
        return torch.tensor([pad + line if left else line + pad])

    plain = [torch.tensor([[token[column] for token in tokens]]) for column in range(3)]
    mask, rewards, values = padded(0), padded(1), padded(2)
    kept = mask != 0
    for have, want in zip(
        gae(rewards, values, mask, gamma, 0.9), gae(plain[1], plain[2], plain[0], gamma, 0.9), strict=True
    ):
        assert torch.equal(have[kept], want[plain[0]])


@given(rows, st.sampled_from([0.9, 1.0]))
def test_with_lambda_one_the_critic_cancels_out_of_the_returns(tokens, gamma):
    kept = torch.tensor([[inside for inside, _, _ in tokens]])
    rewards = torch.tensor([[reward for _, reward, _ in tokens]])
    values = torch.tensor([[value for _, _, value in tokens]])
    _, returns = gae(rewards, values, kept, gamma, 1.0)
    torch.testing.assert_close(returns, discounted_returns(rewards, kept, gamma), atol=1e-5, rtol=1e-5)


def test_a_lambda_a_response_holds_for_its_own_row():
    rewards, values, mask = REWARDS.repeat(2, 1), VALUES.repeat(2, 1), MASK.repeat(2, 1)
    advantages, _ = gae(rewards, values, mask, 1.0, torch.tensor([0.95, 0.5], dtype=torch.float64))
    for row, lam in enumerate([0.95, 0.5]):
        assert torch.equal(advantages[row], gae(REWARDS, VALUES, MASK, 1.0, lam)[0][0])


def test_lambda_grows_with_the_length_and_is_never_negative():
    lengths = torch.tensor([1, 20, 40, 2000])
    assert adaptive_lambda(lengths, 0.05).tolist() == pytest.approx([0.0, 0.0, 0.5, 0.99])


def test_whitened_tokens_have_mean_zero_and_unbiased_variance_one():
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)) * 3 + 2
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    chosen = whiten(values, mask)[mask == 1]
    assert float(chosen.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(chosen.std(unbiased=True)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("values", [[[0.1, 0.1, 0.1]], [[0.1 + 0.2, 0.3, 0.3]]])
def test_whitening_equal_values_gives_exactly_zero(values):
    values = torch.tensor(values, dtype=torch.float64)
    assert whiten(values, torch.ones(1, 3)).tolist() == [[0.0] * 3]


def test_whitening_one_token_or_none_gives_zero():
    assert whiten(torch.tensor([[5.0, 1.0]]), torch.tensor([[1, 0]])).tolist() == [[0.0, 0.0]]
    assert whiten(torch.tensor([[5.0, 1.0]]), torch.tensor([[0, 0]])).tolist() == [[0.0, 0.0]]


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one():
    returns, mask = torch.tensor([[1.0, 2.0, 4.0, 50.0]]), torch.tensor([[1, 1, 1, 0]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(returns + 3.0, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full((1, 4), 2.0), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)


def test_explained_variance_of_returns_that_do_not_vary_is_unknown():
    assert explained_variance(torch.rand(1, 3), torch.ones(1, 3), torch.ones(1, 3)) is None
    assert explained_variance(torch.rand(1, 3), torch.rand(1, 3), torch.zeros(1, 3)) is None
