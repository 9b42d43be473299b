"""Token losses of policy-gradient methods, before any weighting or aggregation.

Each takes tensors of one shape and returns a loss of that shape with the ratio and which tokens were clipped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Beyond this a log-ratio says no more than that the two policies disagree; its exponential would overflow.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token; everything but `loss` is detached. All fields have the shape of the inputs."""

    loss: Tensor
    """To be minimised."""
    ratio: Tensor
    """New over old probability of the token."""
    clipped_low: Tensor
    """bool: the lower clip decided the loss, so that the token has no gradient."""
    clipped_high: Tensor
    """bool: the upper clip decided the loss."""


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(logprobs - old_logprobs).

    The three tensors have one shape (or broadcast to it). The log-ratio is clamped to +-20.
    Source: Schulman et al. 2017, "PPO" (arXiv:1707.06347), equation 7; two clip ranges: DAPO (arXiv:2503.14476).
    """
    log_ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    decided_by_clip = (clipped > unclipped).detach()
    detached = ratio.detach()
    return TokenLoss(
        loss=torch.maximum(unclipped, clipped),
        ratio=detached,
        clipped_low=decided_by_clip & (detached < 1.0),
        clipped_high=decided_by_clip & (detached > 1.0),
    )
