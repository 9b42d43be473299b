import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.aggregation import token_weights
from burnish.maths.losses import clipped_surrogate

NEW = torch.tensor([[-1.0, -0.5, -2.0, 0.0], [-0.3, -1.2, -0.7, -0.9]])
OLD = torch.tensor([[-1.3, -0.5, -1.5, 0.0], [-0.6, -1.1, -0.7, -0.2]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
ADVANTAGES = torch.tensor([[1.0], [-1.0]])
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def test_golden_ratios_and_clip_share():
    loss = clipped_surrogate(NEW, OLD, ADVANTAGES, 0.2, 0.2)
    ratios = loss.ratio[MASK == 1]
    assert ratios.tolist() == pytest.approx([1.349859, 1, 0.606531, 1.349859, 0.904837, 1, 0.496585], abs=1e-6)
    clipped = (loss.clipped_low | loss.clipped_high)[MASK == 1]
    assert float(clipped.float().mean()) == pytest.approx(0.285714, abs=1e-6)
    assert (loss.clipped_low.sum(), loss.clipped_high.sum()) == (1, 1)


@pytest.mark.parametrize(
    ("clip_high", "mode", "expected"),
    [
        (0.2, "token-mean", 0.178309),
        (0.2, "seq-mean-token-mean", 0.039082),
        (0.2, "seq-mean-token-sum-norm", 0.156021),
        (0.28, "token-mean", 0.166881),
        (0.28, "seq-mean-token-mean", 0.025749),
        (0.28, "seq-mean-token-sum-norm", 0.146021),
    ],
)
def test_golden_losses(clip_high, mode, expected):
    loss = clipped_surrogate(NEW, OLD, ADVANTAGES, 0.2, clip_high).loss
    assert float((token_weights(MASK, mode, limit=4) * loss).sum()) == pytest.approx(expected, abs=1e-6)


def test_a_clipped_token_has_no_gradient_and_the_others_have_that_of_the_policy_gradient():
    new = NEW.clone().requires_grad_()
    loss = clipped_surrogate(new, OLD, ADVANTAGES, 0.2, 0.2)
    loss.loss.sum().backward()
    clipped = loss.clipped_low | loss.clipped_high
    assert (new.grad[clipped] == 0).all()
    torch.testing.assert_close(new.grad[~clipped], (-ADVANTAGES * loss.ratio)[~clipped])


def test_equal_policies_give_ratio_one_no_clip_and_minus_the_advantage():
    loss = clipped_surrogate(NEW, NEW, ADVANTAGES, 0.2, 0.2)
    assert (loss.ratio == 1).all()
    assert not (loss.clipped_low | loss.clipped_high).any()
    assert torch.equal(loss.loss, -ADVANTAGES.expand_as(NEW))


@pytest.mark.parametrize("gap", [1e3, -1e3])
def test_an_absurd_log_ratio_stays_finite(gap):
    new = torch.tensor([gap], requires_grad=True)
    loss = clipped_surrogate(new, torch.zeros(1), torch.tensor([-1.0]), 0.2, 0.2).loss
    loss.sum().backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(new.grad.item())


def _mask(lengths, width):
    return torch.tensor([[1] * length + [0] * (width - length) for length in lengths])


lengths_strategy = st.lists(st.integers(0, 6), min_size=1, max_size=8)


@given(lengths_strategy, st.sampled_from(MODES), st.integers(1, 8))
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(lengths, mode, size):
    mask = _mask(lengths, 6)
    generator = torch.Generator().manual_seed(sum(lengths))
    values = torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    weights = token_weights(mask, mode, limit=6)
    whole = values.clone().requires_grad_()
    whole_loss = (weights * whole.square()).sum()
    whole_loss.backward()
    split = values.clone().requires_grad_()
    total = 0.0
    for start in range(0, len(lengths), size):
        rows = slice(start, start + size)
        loss = (weights[rows] * split[rows].square()).sum()
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole_loss.item(), abs=1e-12)
    torch.testing.assert_close(split.grad, whole.grad)


@given(lengths_strategy, st.sampled_from(MODES), st.integers(0, 4), st.booleans())
def test_padding_on_either_side_and_fully_masked_rows_change_no_weight(lengths, mode, padding, left):
    mask = _mask(lengths, 6)
    weights = token_weights(mask, mode, limit=6)
    pad = torch.zeros(len(lengths), padding, dtype=mask.dtype)
    padded = torch.cat([pad, mask] if left else [mask, pad], dim=1)
    padded = torch.cat([padded, torch.zeros(2, padded.shape[1], dtype=mask.dtype)])
    again = token_weights(padded, mode, limit=6)[: len(lengths)]
    assert torch.equal(again[:, padding:] if left else again[:, :6], weights)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.sampled_from(MODES[:2]))
def test_weights_of_a_mean_sum_to_one(lengths, mode):
    assert float(token_weights(_mask(lengths, 6), mode).double().sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_batch_without_a_token_has_weight_zero_everywhere():
    for mode in MODES:
        assert not token_weights(torch.zeros(3, 4), mode, limit=4).any()


def test_the_sum_norm_needs_its_limit():
    with pytest.raises(ValueError, match="completion limit"):
        token_weights(MASK, "seq-mean-token-sum-norm")
