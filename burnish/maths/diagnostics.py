"""How far the trainer's probabilities lie from the sampler's: figures that show a mismatch before it hurts.

All are means over the tokens the policy generated.
"""

from dataclasses import dataclass

from torch import Tensor

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Mismatch:
    """Sampler against trainer over T tokens; w = exp(old - rollout)."""

    kl: float
    """mean(rollout - old): k1 estimate of KL(sampler || trainer), nats."""
    k3: float
    """mean(w - log w - 1): the same divergence, never negative."""
    mean_abs: float
    """mean |old - rollout|, nats."""
    chi2: float
    """mean(w^2) - 1: variance that importance weighting would add."""
    share_outside: float
    """Share of tokens whose w lies outside the bounds."""
    token_mult_prob_error: float
    """mean exp|old - rollout|: 1 is perfect, above about 1.02 deserves a look (a figure NeMo RL popularised)."""


def mismatch(old_logprobs: Tensor, rollout_logprobs: Tensor, bounds: tuple[float, float]) -> Mismatch | None:
    """Figures for [T] logprobs of generated tokens under trainer (old) and sampler (rollout); None for T = 0."""
    if old_logprobs.numel() == 0:
        return None
    log_ratio = (old_logprobs.double() - rollout_logprobs.double()).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    weights = log_ratio.exp()
    low, high = bounds
    return Mismatch(
        kl=float(-log_ratio.mean()),
        k3=float((log_ratio.expm1() - log_ratio).mean()),
        mean_abs=float(log_ratio.abs().mean()),
        chi2=float(weights.square().mean() - 1.0),
        share_outside=float(((weights < low) | (weights > high)).double().mean()),
        token_mult_prob_error=float(log_ratio.abs().exp().mean()),
    )
