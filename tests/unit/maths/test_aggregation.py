import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.contracts.algorithm import Aggregation
from burnish.maths.aggregation import token_weights

MODES = get_args(Aggregation)
every_mode = pytest.mark.parametrize("mode", MODES)
lengths_strategy = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def masked(lengths, width=6):
    return torch.tensor([[1] * length + [0] * (width - length) for length in lengths])


def prompts(count):
    return [f"p{row % 3}" for row in range(count)]


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        ("token-mean", 1 / 10, 1 / 10),
        ("seq-mean-token-mean", 1 / 2, 1 / 18),
        ("seq-mean-token-sum", 1 / 2, 1 / 2),
        ("seq-mean-token-sum-norm", 1 / 40, 1 / 40),
        ("prompt-mean", 1 / 10, 1 / 10),
    ],
)
def test_weights_of_a_short_and_a_long_answer_to_one_prompt(mode, first, second):
    weights = token_weights(masked([1, 9], 9), mode, limit=20, prompt_ids=["p", "p"])
    assert weights[0, 0].item() == pytest.approx(first)
    assert weights[1].tolist() == pytest.approx([second] * 9)


def test_prompt_mean_gives_each_prompt_the_same_say_however_much_was_written_about_it():
    weights = token_weights(masked([1, 1, 6]), "prompt-mean", prompt_ids=["a", "a", "b"])
    assert weights.sum(1).tolist() == pytest.approx([0.25, 0.25, 0.5])
    # Ids, not neighbourhood, make a prompt.
    apart = token_weights(masked([1, 6, 1]), "prompt-mean", prompt_ids=["a", "b", "a"])
    assert apart.sum(1).tolist() == pytest.approx([0.25, 0.5, 0.25])


def test_token_mean_and_prompt_mean_are_not_the_same_number():
    mask = masked([2, 6])
    assert not torch.equal(token_weights(mask, "token-mean"), token_weights(mask, "prompt-mean", prompt_ids=["a", "b"]))


@every_mode
def test_a_truncated_sample_that_is_masked_leaves_the_loss_of_the_other_as_if_it_were_alone(mode):
    both = token_weights(masked([0, 4]), mode, limit=6, prompt_ids=["p", "q"])
    alone = token_weights(masked([4]), mode, limit=6, prompt_ids=["q"])
    assert torch.equal(both[1:], alone)
    assert not both[0].any()


@every_mode
@settings(max_examples=40)
@given(lengths_strategy, st.integers(0, 4), st.booleans())
def test_padding_on_either_side_and_fully_masked_rows_change_no_weight(mode, lengths, padding, left):
    mask = masked(lengths)
    weights = token_weights(mask, mode, limit=6, prompt_ids=prompts(len(lengths)))
    pad = torch.zeros(len(lengths), padding, dtype=mask.dtype)
    padded = torch.cat([pad, mask] if left else [mask, pad], dim=1)
    padded = torch.cat([padded, torch.zeros(2, padded.shape[1], dtype=mask.dtype)])
    again = token_weights(padded, mode, limit=6, prompt_ids=[*prompts(len(lengths)), "empty", "p0"])[: len(lengths)]
    assert torch.equal(again[:, padding:] if left else again[:, :6], weights)


@every_mode
@settings(max_examples=40)
@given(lengths_strategy, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(mode, lengths, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    mask, ids = masked(lengths), prompts(len(lengths))
    plain = token_weights(mask, mode, limit=6, prompt_ids=ids)
    assert torch.equal(token_weights(mask[order], mode, 6, [ids[row] for row in order]), plain[order])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "prompt-mean"])
@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_weights_of_a_mean_sum_to_one(mode, lengths):
    weights = token_weights(masked(lengths), mode, prompt_ids=prompts(len(lengths)))
    assert float(weights.double().sum()) == pytest.approx(1.0, abs=1e-6)


@every_mode
def test_a_batch_without_a_token_has_weight_zero_everywhere(mode):
    assert not token_weights(torch.zeros(3, 4), mode, limit=4, prompt_ids=["a", "b", "c"]).any()
    assert token_weights(torch.zeros(0, 4), mode, limit=4, prompt_ids=[]).shape == (0, 4)


@every_mode
def test_an_observation_inside_a_response_takes_no_part(mode):
    with_hole = token_weights(torch.tensor([[1, 0, 1, 1]]), mode, limit=4, prompt_ids=["p"])
    without = token_weights(torch.tensor([[1, 1, 1]]), mode, limit=4, prompt_ids=["p"])
    assert torch.equal(with_hole[:, [0, 2, 3]], without)
    assert with_hole[0, 1] == 0


def test_averaging_the_means_of_micro_batches_would_be_another_loss():
    # What a trainer without global denominators computes: lengths 1 and 9, one row a micro-batch.
    mask, losses = masked([1, 9], 9), torch.tensor([[1.0] + [0.0] * 8, [0.0] * 9])
    whole = float((token_weights(mask, "token-mean") * losses).sum())
    naive = sum(float((token_weights(mask[row : row + 1], "token-mean") * losses[row]).sum()) for row in (0, 1)) / 2
    assert whole == pytest.approx(0.1)
    assert math.isclose(naive, 0.5)


def test_the_sum_norm_needs_its_limit_and_prompt_mean_its_prompts():
    with pytest.raises(ValueError, match="completion limit"):
        token_weights(masked([1]), "seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="prompt of each of the 2 rows"):
        token_weights(masked([1, 1]), "prompt-mean", prompt_ids=["a"])
