"""Weights that correct for a sampler whose probabilities differ from the trainer's, and what they cost in samples.

Sampler and trainer run different kernels, so even the same weights give slightly different distributions.
"""

from torch import Tensor

_MAX_LOG_RATIO = 20.0


def truncated_importance_weights(old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float) -> Tensor:
    """min(exp(old - rollout), cap) per token, of the shape of the inputs: token-level TIS.

    old: the trainer's logprobs at the start of the update; rollout: those the sampler recorded. Weights of single
    tokens keep nearly every sample; products over long sequences do not. Source: Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training" (fengyao.notion.site/off-policy-rl).
    """
    log_ratio = (old_logprobs - rollout_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return log_ratio.exp().clamp(max=cap)


def effective_sample_share(weights: Tensor) -> float | None:
    """Kish's effective sample size over the count: (sum w)^2 / (n sum w^2), in (0, 1]; None without weights.

    Source: Kish 1965, "Survey sampling", section 8.2.
    """
    total = weights.double().sum()
    squares = weights.double().square().sum()
    if weights.numel() == 0 or squares == 0:
        return None
    return float(total.square() / (weights.numel() * squares))
