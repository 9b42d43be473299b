"""Token losses of policy-gradient methods, before any weighting or aggregation: one function a surrogate.

`log_ratio` comes from ratio.py. All tensors have one shape; `losses.policy_loss` chooses among these by configuration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.maths.ratio import MAX_LOG_RATIO

# DPPO's constant weight of the logprob is bounded, as in verl.
_MAX_WEIGHT = 20.0


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token; everything but `loss` is detached. All fields have the shape of the inputs."""

    loss: Tensor
    """To be minimised."""
    ratio: Tensor
    """New over old probability, at the level that the loss uses."""
    clipped_low: Tensor
    """bool: the ratio is low and the token's gradient is cut (for cispo: its weight is raised to the lower bound)."""
    clipped_high: Tensor
    """bool: the ratio is high and the token's gradient is cut (for cispo: its weight is lowered to the upper bound)."""


def clip_loss(
    log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float = 0.0
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); where A < 0 at most -A dual_clip, unless dual_clip is 0.

    Sources: PPO, Schulman et al. 2017 (arXiv:1707.06347), equation 7; two ranges: DAPO (arXiv:2503.14476); dual clip:
    Ye et al. 2019 (arXiv:1912.09729).
    """
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    cut = clipped > unclipped
    loss = torch.maximum(unclipped, clipped)
    if dual_clip:
        bound = -advantages * dual_clip
        beyond = (advantages < 0) & (bound < loss)
        cut = cut | beyond
        loss = torch.where(beyond, bound, loss)
    return _token_loss(loss, log_ratio, cut | _saturated(log_ratio, advantages))


def cispo_loss(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> TokenLoss:
    """-sg[clip(r, 1 - clip_low, 1 + clip_high)] A logprob: every token keeps a gradient, of bounded weight.

    Source: CISPO, MiniMax 2025 (arXiv:2506.13585).
    """
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return _token_loss(-weight * advantages * logprobs, log_ratio, weight != ratio)


def sapo_loss(log_ratio: Tensor, advantages: Tensor, tau_positive: float, tau_negative: float) -> TokenLoss:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A: a gradient of 1 at r = 1 that fades, never cut.

    Source: SAPO, Qwen 2025 (arXiv:2511.20347).
    """
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    return _token_loss(-advantages * gate, log_ratio, torch.zeros_like(log_ratio, dtype=torch.bool))


def reinforce_loss(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> TokenLoss:
    """-A logprob, the score function (Williams 1992). The ratio is reported, not used."""
    return _token_loss(-advantages * logprobs, log_ratio, torch.zeros_like(log_ratio, dtype=torch.bool))


def gmpo_loss(log_ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float) -> TokenLoss:
    """-A s, s the geometric mean over the response of its token ratios, clipped to e^-clip_low and e^clip_high.

    As in PPO a ratio is clipped only where that makes the loss larger. s carries the gradient of the token's own
    clipped log-ratio, as in GSPO's token form. `ratio` is the token's. Source: GMPO (arXiv:2507.20673).
    """
    sign = advantages.sign()
    held = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-clip_low, clip_high))
    held = torch.where(sign == 0, log_ratio, held)
    kept = mask != 0
    total = torch.where(kept, held.detach(), 0.0).sum(dim=1, keepdim=True)
    mean = total / kept.sum(dim=1, keepdim=True).clamp(min=1)
    loss = -advantages * (mean + (held - held.detach())).exp()
    return _token_loss(loss, log_ratio, (held != log_ratio) | _saturated(log_ratio, advantages))


def dppo_tv_loss(
    log_ratio: Tensor, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenLoss:
    """-A sg[min(r, 20)] logprob, but 0 on tokens whose probability has already moved too far the way A pushes it.

    Too far: p - p_old > clip_high where A > 0, p - p_old < -clip_low where A < 0. Source: DPPO's total-variation
    trust region, as in prime-rl and verl.
    """
    moved = (logprobs.exp() - old_logprobs.exp()).detach()
    cut = torch.where(advantages > 0, moved > clip_high, (advantages < 0) & (moved < -clip_low))
    weight = log_ratio.detach().exp().clamp(max=_MAX_WEIGHT)
    return _token_loss(torch.where(cut, 0.0, -weight * advantages * logprobs), log_ratio, cut)


def _saturated(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """Where the clamp of the log-ratio has taken the gradient."""
    return (log_ratio.abs() >= MAX_LOG_RATIO) & (advantages != 0)


def _token_loss(loss: Tensor, log_ratio: Tensor, cut: Tensor) -> TokenLoss:
    detached = log_ratio.detach()
    return TokenLoss(loss, detached.exp(), cut & (detached < 0), cut & (detached > 0))
