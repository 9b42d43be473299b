import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.contracts.algorithm import CorrectionConfig, CorrectionMode
from burnish.contracts.errors import ConfigError
from burnish.maths.correction import correction_weights, effective_sample_share, off_policy_rejected

OLD = torch.tensor([[-1.3, -0.5, -1.5, 0.0], [-0.6, -1.1, -0.7, -0.2]])
ROLLOUT = torch.tensor([[-1.35, -0.48, -1.5, 0.0], [-0.6, -1.9, -0.75, -0.2]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
KEPT = MASK == 1
TOKENS = [1.051271, 0.980199, 1, 1, 2.225541, 1.051271, 1]
PRODUCTS = [1.030455, 2.339647]
MODES = get_args(CorrectionMode)


def weights(mode, old=OLD, rollout=ROLLOUT, mask=MASK, **fields):
    return correction_weights(old, rollout, mask, CorrectionConfig(mode=mode, **fields))


def tokens(correction):
    return correction.weights[KEPT].tolist()


def test_golden_token_truncation_changes_one_token_to_the_cap():
    assert tokens(weights("token_tis", cap=9.0)) == pytest.approx(TOKENS, abs=1e-6)
    capped = weights("token_tis")
    assert tokens(capped) == pytest.approx([*TOKENS[:4], 2.0, *TOKENS[5:]], abs=1e-6)
    assert effective_sample_share(capped.weights[KEPT]) == pytest.approx(0.917593, abs=1e-6)
    assert not capped.rejected_sequences.any()


def test_golden_token_mask_keeps_all_by_default_and_removes_one_below_two():
    assert tokens(weights("token_mask")) == pytest.approx(TOKENS, abs=1e-6)
    narrow = weights("token_mask", low=0.5, high=2.0)
    assert tokens(narrow) == pytest.approx([*TOKENS[:4], 0.0, *TOKENS[5:]], abs=1e-6)
    assert not narrow.rejected_sequences.any()


def test_golden_sequence_products_are_capped_or_rejected():
    assert weights("sequence_mask").weights[:, 0].tolist() == pytest.approx(PRODUCTS, abs=1e-6)
    assert weights("sequence_tis").weights[:, 0].tolist() == pytest.approx([PRODUCTS[0], 2.0], abs=1e-6)
    rejected = weights("sequence_mask", high=2.0)
    assert rejected.weights[:, 0].tolist() == pytest.approx([PRODUCTS[0], 0.0], abs=1e-6)
    assert rejected.rejected_sequences.tolist() == [False, True]


def test_golden_geometric_means_drop_both_responses_under_the_default_bounds():
    assert weights("geometric_mask").rejected_sequences.tolist() == [True, True]
    # Geometric means are 1.010050 and 1.236766.
    wider = weights("geometric_mask", low=0.99, high=1.02)
    assert wider.rejected_sequences.tolist() == [False, True]
    assert tokens(wider) == pytest.approx([*TOKENS[:3], 0, 0, 0, 0], abs=1e-6)
    assert not weights("geometric_mask", low=1.01004, high=1.23677).rejected_sequences.any()


def test_mode_none_weighs_every_trained_token_with_one():
    assert weights("none").weights.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_single_impossible_token_vetoes_its_response_in_every_mode():
    rollout = ROLLOUT.clone()
    rollout[0, 1] = OLD[0, 1] + 10.0
    for mode in MODES:
        vetoed = weights(mode, rollout=rollout, veto=1e-4, low=1e-9, high=1e9)
        assert vetoed.rejected_sequences.tolist() == [True, False], mode
        assert not vetoed.weights[0].any()
        assert vetoed.weights[1].all()


def test_a_response_is_rejected_by_its_mean_k3():
    # Row 1: (1.2255 - .8 + .051271 - .05) / 4 = .1067; row 0: (.001271 + .000199) / 3.
    assert weights("token_tis", reject_k3=0.1).rejected_sequences.tolist() == [False, True]
    assert not weights("token_tis", reject_k3=0.11).rejected_sequences.any()


def test_normalized_weights_average_to_one_over_the_tokens_that_are_kept():
    normalized = weights("token_mask", low=0.5, high=2.0, normalize=True)
    kept = normalized.weights[normalized.weights > 0]
    assert len(kept) == 6
    assert float(kept.mean()) == pytest.approx(1.0, abs=1e-6)
    capped = weights("token_tis", normalize=True).weights
    # After truncation: the capped token stays the largest, at 2 over the mean of the capped weights.
    assert float(capped.max()) == pytest.approx(2 / (sum([*TOKENS[:4], 2.0, *TOKENS[5:]]) / 7), abs=1e-5)


def test_normalizing_a_batch_in_which_everything_is_rejected_stays_zero():
    assert not weights("geometric_mask", normalize=True).weights.any()


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(0, 3))
def test_policies_that_agree_weigh_one_and_the_mask_alone_decides_elsewhere(mode, logprobs, padding):
    old = torch.tensor([logprobs + [math.nan] * padding])
    mask = torch.tensor([[1] * len(logprobs) + [0] * padding])
    same = weights(mode, old=old, rollout=old, mask=mask, normalize=True, veto=1e-4, reject_k3=0.1)
    assert torch.equal(same.weights, mask.float())
    assert not same.rejected_sequences.any()


@pytest.mark.parametrize("mode", MODES)
def test_an_absurd_difference_gives_finite_weights_without_gradient(mode):
    old = torch.full((1, 300), -1.0, requires_grad=True)
    rollout, mask = torch.full((1, 300), -1e4), torch.ones(1, 300)
    correction = weights(mode, old=old, rollout=rollout, mask=mask, cap=1e300, high=1e300)
    assert correction.weights.isfinite().all()
    assert not correction.weights.requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_a_fully_masked_row_is_not_rejected_and_changes_no_other(mode):
    def padded(values):
        return torch.cat([values, torch.full((1, 4), 5.0, dtype=values.dtype)])

    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=MASK.dtype)])
    fields = {"veto": 1e-4, "reject_k3": 0.1, "normalize": True}
    more = weights(mode, padded(OLD), padded(ROLLOUT), mask, **fields)
    plain = weights(mode, **fields)
    assert torch.equal(more.weights[:2], plain.weights)
    assert more.rejected_sequences.tolist() == [*plain.rejected_sequences.tolist(), False]


def test_a_row_without_tokens_is_not_rejected_even_where_the_bounds_leave_out_one():
    for mode in ("sequence_mask", "geometric_mask"):
        correction = weights(mode, mask=torch.zeros(2, 4), low=1.01, high=9.0)
        assert not correction.rejected_sequences.any(), mode
        assert not correction.weights.any()


def test_products_of_long_responses_have_no_samples_left_where_token_weights_keep_nearly_all():
    # Log-ratios of deviation .05 whose weights average to 1, over 1000 tokens: the product has log-deviation 1.58 and
    # median e^-1.25, and its ESS tends to e^-2.5 = 8 % (from above: few draws miss the tail) against 99.75 %.
    generator = torch.Generator().manual_seed(0)
    ratios = 0.05 * torch.randn(2000, 1000, generator=generator) - 0.05**2 / 2
    rollout, mask = torch.zeros(2000, 1000), torch.ones(2000, 1000)
    token = weights("token_tis", ratios, rollout, mask).weights
    product = weights("sequence_tis", ratios, rollout, mask, cap=1e9).weights[:, 0]
    assert effective_sample_share(token) == pytest.approx(0.9975, abs=5e-4)
    assert effective_sample_share(product) < 0.2
    assert float(product.median()) == pytest.approx(0.29, abs=0.03)


def test_a_weight_of_zero_costs_effective_samples():
    assert effective_sample_share(torch.tensor([1.0, 1.0, 1.0, 0.0])) == pytest.approx(0.75)
    assert effective_sample_share(torch.zeros(0)) is None
    assert effective_sample_share(torch.zeros(3)) is None


def test_only_negative_responses_that_the_policy_has_left_are_rejected_as_off_policy():
    old = torch.tensor([[-1.0, -1.0, 7.0]] * 4)
    current = torch.tensor([[-2.0, -2.0, 0.0], [-2.0, -2.0, 0.0], [-1.2, -1.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0]] * 4)
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0])
    assert off_policy_rejected(old, current, advantages, mask, 0.5).tolist() == [True, False, False, False]
    assert not off_policy_rejected(old, current, advantages, torch.zeros(4, 3), 0.5).any()


def test_a_mode_that_is_empty_and_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError, match=r"update\.preset"):
        weights(None)
    with pytest.raises(ConfigError, match=r"low=0\.999 is not below high=0\.9 for mode=geometric_mask"):
        weights("geometric_mask", high=0.9)
