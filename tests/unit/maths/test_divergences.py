import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.maths.correction import effective_sample_share, truncated_importance_weights
from burnish.maths.diagnostics import mismatch
from burnish.maths.entropy import logprobs_and_entropy
from burnish.maths.kl import kl_estimate

ROLLOUT = torch.tensor([-1.35, -0.48, -1.5, -0.6, -1.9, -0.75, -0.2], dtype=torch.float64)
OLD = torch.tensor([-1.3, -0.5, -1.5, -0.6, -1.1, -0.7, -0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", [0.2, -0.4]), ("k2", [0.02, 0.08]), ("k3", [0.018731, 0.091825])]
)
def test_golden_kl_estimates(estimator, expected):
    difference = torch.tensor([0.2, -0.4], dtype=torch.float64)
    assert kl_estimate(difference, torch.zeros(2), estimator).tolist() == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8))
def test_k3_is_finite_and_never_negative(differences):
    values = kl_estimate(torch.tensor(differences), torch.zeros(len(differences)), "k3")
    assert (values >= 0).all()
    assert (values <= 10).all()


def test_the_gradient_of_k2_as_a_loss_is_that_of_the_kl():
    # Exact expectation over a three-way distribution against the derivative of sum p log(p / q).
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logprobs = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    expected = (logprobs.detach().exp() * kl_estimate(logprobs, reference, "k2")).sum()
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, exact)


def test_golden_importance_weights_and_their_effective_sample_share():
    weights = truncated_importance_weights(OLD, ROLLOUT, cap=math.inf)
    assert weights.tolist() == pytest.approx([1.051271, 0.980199, 1, 1, 2.225541, 1.051271, 1], abs=1e-6)
    capped = truncated_importance_weights(OLD, ROLLOUT, cap=2.0)
    assert (capped != weights).nonzero().tolist() == [[4]]
    assert capped[4] == 2.0
    assert effective_sample_share(capped) == pytest.approx(0.917593, abs=1e-6)


def test_golden_mismatch_figures():
    figures = mismatch(OLD, ROLLOUT, bounds=(0.9, 1.1))
    assert figures.kl == pytest.approx(-0.125714, abs=1e-6)
    assert figures.k3 == pytest.approx(0.061183, abs=1e-6)
    assert figures.mean_abs == pytest.approx(0.131429, abs=1e-6)
    assert figures.chi2 == pytest.approx(0.589166, abs=1e-6)
    assert figures.token_mult_prob_error == pytest.approx(1.192612, abs=1e-6)
    assert figures.share_outside == pytest.approx(1 / 7)


def test_without_tokens_there_are_no_figures():
    assert mismatch(torch.zeros(0), torch.zeros(0), bounds=(0.9, 1.1)) is None
    assert effective_sample_share(torch.zeros(0)) is None


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
    assert truncated_importance_weights(trainer, raw, cap=9.0).item() == pytest.approx(expected, rel=1e-5)
    assert expected > 1.1
