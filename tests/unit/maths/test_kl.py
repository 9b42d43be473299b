from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.algorithm import KlEstimator
from burnish.maths.kl import kl_estimate, next_kl_coef, off_policy_kl

LOGITS = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
OLD = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64).log()


def exact(logits):
    """KL(policy || reference) of three-way distributions and its gradient."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    kl = (logprobs.exp() * (logprobs - REFERENCE)).sum()
    return kl.detach(), torch.autograd.grad(kl, logits)[0]


def expected_gradient(estimate, sampler=None):
    """Expectation over the sampler's draws (the policy's own without one) of an estimate's gradient."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    probabilities = (logprobs if sampler is None else sampler).detach().exp()
    return torch.autograd.grad((probabilities * estimate(logprobs)).sum(), logits)[0]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.2, -0.4]), ("k2", [0.02, 0.08]), ("k3", [0.018731, 0.091825]), ("k3+", [0.018731, 0.091825])],
)
def test_golden_kl_estimates(estimator, expected):
    difference = torch.tensor([0.2, -0.4], dtype=torch.float64)
    assert kl_estimate(difference, torch.zeros(2), estimator).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k3", "k3+"])
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8))
def test_k3_is_finite_and_never_negative(estimator, differences):
    values = kl_estimate(torch.tensor(differences), torch.zeros(len(differences)), estimator)
    assert (values >= 0).all()
    assert (values <= 10).all()


@pytest.mark.parametrize("estimator", ["k1", "k3", "k3+"])
def test_the_expectation_of_the_estimate_is_the_kl(estimator):
    logprobs = LOGITS.log_softmax(0)
    value = (logprobs.exp() * kl_estimate(logprobs, REFERENCE, estimator)).sum()
    torch.testing.assert_close(value, exact(LOGITS)[0])


@pytest.mark.parametrize("estimator", ["k2", "k3+"])
def test_the_gradient_of_k2_and_k3_plus_as_a_loss_is_that_of_the_kl(estimator):
    gradient = expected_gradient(lambda logprobs: kl_estimate(logprobs, REFERENCE, estimator))
    torch.testing.assert_close(gradient, exact(LOGITS)[1])


def test_the_gradient_of_k1_as_a_loss_is_nothing_and_that_of_k3_is_another():
    k1 = expected_gradient(lambda logprobs: kl_estimate(logprobs, REFERENCE, "k1"))
    torch.testing.assert_close(k1, torch.zeros(3, dtype=torch.float64))
    k3 = expected_gradient(lambda logprobs: kl_estimate(logprobs, REFERENCE, "k3"))
    # Forward KL instead: policy minus reference probabilities.
    torch.testing.assert_close(k3, LOGITS.softmax(0) - REFERENCE.exp())


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_off_policy_every_estimator_has_the_gradient_of_the_kl(estimator):
    gradient = expected_gradient(lambda logprobs: off_policy_kl(logprobs, OLD, REFERENCE, estimator), sampler=OLD)
    torch.testing.assert_close(gradient, exact(LOGITS)[1])


@pytest.mark.parametrize("estimator", ["k2", "k3+"])
def test_without_the_ratio_the_off_policy_gradient_would_be_wrong(estimator):
    gradient = expected_gradient(lambda logprobs: kl_estimate(logprobs, REFERENCE, estimator), sampler=OLD)
    assert not torch.allclose(gradient, exact(LOGITS)[1], atol=1e-3)


def test_single_precision_keeps_the_digits_of_policies_that_all_but_agree():
    difference = torch.tensor([1e-4, -3e-4])
    want = kl_estimate(difference.double(), torch.zeros(2), "k3")
    torch.testing.assert_close(kl_estimate(difference, torch.zeros(2), "k3").double(), want, rtol=1e-2, atol=0)


@pytest.mark.parametrize(("measured", "factor"), [(0.05, 0.99488), (0.11, 1.00256), (0.5, 1.00512), (0.1, 1.0)])
def test_golden_adaptive_coefficients(measured, factor):
    assert next_kl_coef(0.3, measured, target=0.1, samples=256, horizon=10_000) == pytest.approx(0.3 * factor, rel=1e-6)


def test_the_adaptive_coefficient_waits_for_a_measurement_and_never_reaches_zero():
    assert next_kl_coef(0.3, None, target=0.1, samples=256, horizon=10_000) == 0.3
    assert next_kl_coef(0.3, 0.0, target=0.1, samples=10**9, horizon=10_000) == pytest.approx(0.24)
