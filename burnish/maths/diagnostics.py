"""How far the trainer's probabilities lie from the sampler's: figures that show a mismatch before it hurts.

All but `chi2_sequence` are means over the tokens the policy generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.maths.ratio import MAX_LOG_RATIO, token_log_ratio


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
    """mean(w^2) - 1: variance that importance weighting of tokens would add."""
    chi2_sequence: float | None
    """The same for whole responses, from the product of their w; None when their lengths are not known."""
    share_outside: float
    """Share of tokens whose w lies outside the bounds."""
    token_mult_prob_error: float
    """mean exp|old - rollout|: 1 is perfect, above about 1.02 deserves a look (a figure NeMo RL popularised)."""


def mismatch(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    bounds: tuple[float, float],
    lengths: Sequence[int] | None = None,
) -> Mismatch | None:
    """Figures for [T] logprobs of generated tokens under trainer (old) and sampler (rollout); None for T = 0.

    lengths: how many of the T tokens each response has, in order; a response without any is in no figure.
    """
    if old_logprobs.numel() == 0:
        return None
    log_ratio = token_log_ratio(old_logprobs.double(), rollout_logprobs.double())
    weights = log_ratio.exp()
    low, high = bounds
    return Mismatch(
        kl=float(-log_ratio.mean()),
        k3=float((log_ratio.expm1() - log_ratio).mean()),
        mean_abs=float(log_ratio.abs().mean()),
        chi2=float(weights.square().mean() - 1.0),
        chi2_sequence=None if lengths is None else _chi2_sequence(log_ratio, lengths),
        share_outside=float(((weights < low) | (weights > high)).double().mean()),
        token_mult_prob_error=float(log_ratio.abs().exp().mean()),
    )


def _chi2_sequence(log_ratio: Tensor, lengths: Sequence[int]) -> float:
    responses = torch.split(log_ratio, [length for length in lengths if length])
    products = torch.stack([response.sum() for response in responses]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return float((2 * products).exp().mean() - 1.0)
