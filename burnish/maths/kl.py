"""Estimators of the KL divergence to a reference from the logprobs of sampled tokens, and who sets their weight.

Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
"""

from torch import Tensor

from burnish.contracts.algorithm import KlEstimator
from burnish.maths.ratio import token_log_ratio

MAX_K3 = 10.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """KL(policy || reference) per token, in nats, of the shape of the inputs; d = logprobs - ref_logprobs.

    k1: d, unbiased, may be negative, and its gradient as a loss is 0 in expectation. k2: d^2 / 2, the one whose
    gradient as a loss is that of the KL. k3: exp(-d) + d - 1, unbiased and never negative (GRPO's choice). k3+: the
    value of k3 with the gradient of k2. d is clamped to +-20 and k3 to 10: one token that the reference finds absurd
    must not own the step.
    """
    difference = token_log_ratio(logprobs, ref_logprobs)
    if estimator == "k1":
        return difference
    k2 = 0.5 * difference.square()
    if estimator == "k2":
        return k2
    # expm1 keeps the digits that exp(-d) - 1 loses when policy and reference all but agree.
    k3 = ((-difference).expm1() + difference).clamp(max=MAX_K3)
    return k3 if estimator == "k3" else k3.detach() + (k2 - k2.detach())


def off_policy_kl(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """`kl_estimate` times the token's ratio to the policy that sampled it, so that its gradient is the KL's.

    For k1 and k3, whose expectation is the KL, the ratio takes part in the gradient; for k2 and k3+, whose gradient
    already is the KL's, it is a constant. Source: DeepSeek-V3.2 (arXiv:2512.02556).
    """
    ratio = token_log_ratio(logprobs, old_logprobs).exp()
    if estimator in ("k2", "k3+"):
        ratio = ratio.detach()
    return ratio * kl_estimate(logprobs, ref_logprobs, estimator)


def next_kl_coef(coef: float, measured: float | None, target: float, samples: int, horizon: int) -> float:
    """coef (1 + clip(measured / target - 1, +-0.2) min(samples / horizon, 1)); unchanged where nothing was measured.

    measured, target: KL per sequence token, nats; samples: how many since the last call. Source: Ziegler et al. 2019
    (arXiv:1909.08593), section 2.2.
    """
    if measured is None:
        return coef
    error = min(max(measured / target - 1.0, -0.2), 0.2)
    # Without the bound on the share a batch of five horizons could turn the weight off for good.
    return coef * (1.0 + error * min(samples / horizon, 1.0))
