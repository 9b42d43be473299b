"""Weights that correct for a sampler whose probabilities differ from the trainer's, and what they cost in samples.

Sampler and trainer run different kernels, so even the same weights give slightly different distributions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.contracts.algorithm import CorrectionConfig
from burnish.contracts.errors import ConfigError
from burnish.maths.ratio import MAX_LOG_RATIO, token_log_ratio

_CAP = 2.0
_TOKEN_BOUNDS = (0.5, 5.0)
_SEQUENCE_BOUNDS = (0.0, 3.0)
_GEOMETRIC_BOUNDS = (0.999, 1.002)


@dataclass(frozen=True)
class Correction:
    """Detached factors of the token losses. What has weight 0 stays in every denominator."""

    weights: Tensor
    """[N, R] float32, 0 outside the mask."""
    rejected_sequences: Tensor
    """[N] bool: the whole response has weight 0."""


def correction_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, settings: CorrectionConfig
) -> Correction:
    """Weights from w = exp(old - rollout) under `settings`, for the [N, R] tokens of a whole optimizer step.

    none: 1. token_tis: min(w, cap) (Yao et al. 2025, fengyao.notion.site/off-policy-rl). sequence_tis: min(prod w,
    cap). token_mask: w in [low, high], else 0 (IcePop; MIS). sequence_mask: prod w in [low, high], else 0.
    geometric_mask: w where the response's geometric mean is in [low, high], else 0. Products have little left of their
    samples on long responses. Then the vetoes, and last `normalize`: weights over their mean on kept tokens.
    Raises ConfigError when `mode` is empty or the bounds are the wrong way round.
    """
    kept = mask != 0
    lengths = kept.sum(dim=1, keepdim=True)
    logs = torch.where(kept, token_log_ratio(old_logprobs.double(), rollout_logprobs.double()), 0.0).detach()
    weights = logs.exp()
    total = logs.sum(dim=1, keepdim=True)
    rejected = torch.zeros_like(lengths, dtype=torch.bool)
    cap = settings.cap or _CAP
    match settings.mode:
        case None:
            raise ConfigError("update.correction.mode is empty; fill it from update.preset first")
        case "none":
            applied = torch.ones_like(weights)
        case "token_tis":
            applied = weights.clamp(max=cap)
        case "sequence_tis":
            applied = _product(total).clamp(max=cap).expand_as(weights)
        case "token_mask":
            applied = torch.where(_inside(weights, settings, _TOKEN_BOUNDS), weights, 0.0)
        case "sequence_mask":
            applied = _product(total).expand_as(weights)
            rejected = ~_inside(_product(total), settings, _SEQUENCE_BOUNDS)
        case "geometric_mask":
            applied = weights
            rejected = ~_inside((total / lengths.clamp(min=1)).exp(), settings, _GEOMETRIC_BOUNDS)
    if settings.veto:
        rejected = rejected | (weights < settings.veto).any(dim=1, keepdim=True)
    if settings.reject_k3 is not None:
        divergence = (logs.expm1() - logs).sum(dim=1, keepdim=True) / lengths.clamp(min=1)
        rejected = rejected | (divergence > settings.reject_k3)
    rejected = rejected & (lengths > 0)
    applied = torch.where(kept & ~rejected, applied, 0.0)
    if settings.normalize:
        count = (applied > 0).sum().clamp(min=1)
        applied = applied / (applied.sum() / count).clamp(min=torch.finfo(applied.dtype).tiny)
    return Correction(applied.float(), rejected[:, 0])


def off_policy_rejected(
    old_logprobs: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor, limit: float
) -> Tensor:
    """[N] bool: the advantage is negative and mean(old - current) over the response exceeds `limit` nats.

    Pushing down what the policy has already left can only do harm. advantages: [N]; the logprobs and the mask: [N, R].
    Source: the off-policy sequence mask of DeepSeek-V3.2 (arXiv:2512.02556).
    """
    kept = mask != 0
    drift = torch.where(kept, (old_logprobs - logprobs).detach().double(), 0.0).sum(dim=1)
    return (advantages < 0) & (drift / kept.sum(dim=1).clamp(min=1) > limit)


def effective_sample_share(weights: Tensor) -> float | None:
    """Kish's effective sample size over the count: (sum w)^2 / (n sum w^2), in (0, 1]; None without weights.

    Give it the applied weights of the trained tokens, the zeros among them. Source: Kish 1965, "Survey sampling",
    section 8.2.
    """
    total = weights.double().sum()
    squares = weights.double().square().sum()
    if weights.numel() == 0 or squares == 0:
        return None
    return float(total.square() / (weights.numel() * squares))


def _product(total: Tensor) -> Tensor:
    return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _inside(values: Tensor, settings: CorrectionConfig, defaults: tuple[float, float]) -> Tensor:
    low = defaults[0] if settings.low is None else settings.low
    high = defaults[1] if settings.high is None else settings.high
    if low >= high:
        raise ConfigError(
            f"update.correction: low={low:g} is not below high={high:g} for mode={settings.mode}; set both"
        )
    return (values >= low) & (values <= high)
