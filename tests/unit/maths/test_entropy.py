import math

import pytest
import torch

from burnish.maths.entropy import logprobs_and_entropy
from burnish.maths.ratio import token_log_ratio


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.832396), (0.6, 0.556749)])
def test_golden_entropies(temperature, expected):
    logits = torch.tensor([[2.0, 1.0, 0.0]]) / temperature
    logprobs, entropy = logprobs_and_entropy(logits, torch.tensor([0]))
    assert entropy.item() == pytest.approx(expected, abs=1e-6)
    assert logprobs.item() == pytest.approx(logits.log_softmax(-1)[0, 0].item(), abs=1e-6)


def test_a_forbidden_token_adds_nothing_to_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    _, entropy = logprobs_and_entropy(logits, torch.tensor([1]))
    assert entropy.item() == pytest.approx(math.log(2), abs=1e-6)


def test_raw_logprobs_of_a_tempered_sampler_would_bias_the_ratio():
    # Odds x = e^(1/.6) : 1 at T=.6 are e : 1 at T=1. A sampler that records the latter is off by this factor on the
    # very first token, which is why rollouts must say `processed`.
    logits = torch.tensor([[1.0, 0.0]])
    trainer, _ = logprobs_and_entropy(logits / 0.6, torch.tensor([0]))
    raw, _ = logprobs_and_entropy(logits, torch.tensor([0]))
    odds, tempered = math.e, math.exp(1 / 0.6)
    expected = (tempered / (1 + tempered)) / (odds / (1 + odds))
    assert token_log_ratio(trainer, raw).exp().item() == pytest.approx(expected, rel=1e-5)
    assert expected > 1.1


def test_a_truncated_sampler_would_bias_the_ratio_by_what_it_cut_off():
    # top_p .8 leaves .5 and .3: the sampler's logprob of token 0 is log(.625), the trainer's log(.5).
    trainer, _ = logprobs_and_entropy(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), torch.tensor([0]))
    assert token_log_ratio(trainer, torch.tensor([0.625]).log()).exp().item() == pytest.approx(0.8, abs=1e-6)
