"""A step's loss and gradient do not depend on how it is cut into micro-batches or dealt to ranks.

The policy is three numbers with fixed features per token, so that every token's gradient meets in one place.
"""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.contracts.algorithm import Aggregation, CorrectionConfig, LossConfig
from burnish.maths.aggregation import token_weights
from burnish.maths.correction import correction_weights
from burnish.maths.kl import kl_estimate
from burnish.maths.losses import policy_loss
from burnish.maths.positive import positive_nll_weights

RANGES = {"gmpo": 0.4, "dppo_tv": 0.05}
CORRECTIONS = ["none", "token_tis", "sequence_tis", "token_mask", "sequence_mask", "geometric_mask"]
LIMIT = 8


class Step:
    """One optimizer step with every weight computed over all of its rows."""

    def __init__(self, lengths, surrogate, ratio, aggregation, correction, seed):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        count, width = len(lengths), max([1, *lengths])
        self.mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        # A hole in every other row, as an observation leaves one.
        self.mask[::2, 1:2] = False
        self.features = 0.5 * normal(count, width, 3)
        self.start = normal(3)
        old = self.logprobs(self.start + 0.3 * normal(3)).detach()
        self.old, self.ref = old, old + 0.1 * normal(count, width)
        self.advantages = normal(count, 1).expand(count, width)
        range_ = RANGES.get(surrogate, 0.2)
        self.loss = LossConfig(surrogate=surrogate, ratio=ratio, clip_low=range_, clip_high=range_)
        correction = CorrectionConfig(mode=correction, low=0.8, high=1.3, normalize=True, veto=0.3)
        applied = correction_weights(old, old + 0.1 * normal(count, width), self.mask, correction)
        ids = [f"p{row // 2}" for row in range(count)]
        self.weights = token_weights(self.mask, aggregation, LIMIT, ids).double()
        self.policy_weights = self.weights * applied.weights
        self.nll_weights = positive_nll_weights(self.advantages, self.mask).double()

    def logprobs(self, theta):
        return -(self.features @ theta).square()

    def part(self, theta, rows):
        """Loss of some rows, whatever else is in the step."""
        logprobs = self.logprobs(theta)[rows]
        old, advantages, mask = self.old[rows], self.advantages[rows], self.mask[rows]
        surrogate = policy_loss(logprobs, old, advantages, mask, self.loss)
        loss = (self.policy_weights[rows] * surrogate.loss).sum()
        loss = loss + 0.1 * (self.weights[rows] * kl_estimate(logprobs, self.ref[rows], "k3+")).sum()
        return loss - 0.1 * (self.nll_weights[rows] * logprobs).sum()

    def run(self, parts):
        theta = self.start.clone().requires_grad_()
        total = 0.0
        for rows in parts:
            loss = self.part(theta, rows)
            loss.backward()
            total += loss.item()
        return total, theta.grad


lengths_strategy = st.lists(st.integers(0, LIMIT), min_size=1, max_size=8)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("surrogate", ["clip", "cispo", "sapo", "reinforce", "gmpo", "dppo_tv"])
@settings(max_examples=8)
@given(data=st.data())
def test_any_split_and_any_order_of_rows_give_the_same_loss_and_gradient(surrogate, ratio, aggregation, data):
    lengths = data.draw(lengths_strategy)
    step = Step(
        lengths, surrogate, ratio, aggregation, data.draw(st.sampled_from(CORRECTIONS)), data.draw(st.integers(0, 99))
    )
    order = data.draw(st.permutations(range(len(lengths))))
    size = data.draw(st.integers(1, 4))
    whole, gradient = step.run([list(range(len(lengths)))])
    total, accumulated = step.run([list(order[at : at + size]) for at in range(0, len(order), size)])
    assert total == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(accumulated, gradient, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@settings(max_examples=10)
@given(lengths=lengths_strategy, seed=st.integers(0, 99))
def test_two_ranks_whose_gradients_are_averaged_and_scaled_back_equal_one(aggregation, lengths, seed):
    step = Step(lengths, "clip", "token", aggregation, "token_tis", seed)
    whole, gradient = step.run([list(range(len(lengths)))])
    ranks = [step.run([list(range(rank, len(lengths), 2))]) for rank in (0, 1)]
    averaged = torch.stack([grad for _, grad in ranks]).mean(dim=0)
    assert sum(loss for loss, _ in ranks) == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(2 * averaged, gradient, atol=1e-9, rtol=1e-7)
