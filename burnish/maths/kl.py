"""Estimators of the KL divergence to a reference from the logprobs of sampled tokens.

Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
"""

from typing import Literal

from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """KL(policy || reference) per token, in nats, of the shape of the inputs; d = logprobs - ref_logprobs.

    k1: d, unbiased, may be negative, and its gradient as a loss is 0 in expectation. k2: d^2 / 2, the one whose
    gradient as a loss is that of the KL. k3: exp(-d) + d - 1, unbiased and never negative (GRPO's choice).
    d is clamped to +-20 and k3 to 10: one token that the reference finds absurd must not own the step.
    """
    difference = (logprobs - ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    # expm1 keeps the digits that exp(-d) - 1 loses when policy and reference all but agree.
    return ((-difference).expm1() + difference).clamp(max=MAX_K3)
