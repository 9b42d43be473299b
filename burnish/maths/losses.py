"""The policy loss and the value loss of a token, as configured.

Which loss follows from three choices that do not know of each other: the ratio's level, the surrogate, and (in
aggregation.py) how token losses become one number.
"""

import torch
from torch import Tensor

from burnish.contracts.algorithm import LossConfig
from burnish.contracts.errors import ConfigError
from burnish.maths import surrogates
from burnish.maths.ratio import sequence_log_ratio, token_log_ratio
from burnish.maths.surrogates import TokenLoss as TokenLoss


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    settings: LossConfig,
    clip_factor: float = 1.0,
) -> TokenLoss:
    """The loss of every token under `settings`, whose empty fields the preset has filled; 0 where `mask` is 0.

    All tensors are [N, R]; what stands outside the mask, NaN included, changes nothing. Rows do not see each other, so
    any split of a step into micro-batches of whole rows gives the same losses. clip_factor: scales both clip ranges
    (after a rollback); surrogates without a range are not changed by it. Raises ConfigError for fields that are empty
    or contradict each other.
    """
    if settings.surrogate is None or settings.ratio is None or settings.clip_low is None or settings.clip_high is None:
        raise ConfigError("update.loss has empty fields; fill them from update.preset first")
    dual_clip = settings.dual_clip or 0.0
    if dual_clip and (settings.surrogate != "clip" or dual_clip <= 1):
        raise ConfigError(
            f"update.loss.dual_clip={dual_clip:g} with update.loss.surrogate={settings.surrogate}: it must be above 1 "
            "and belongs to surrogate=clip; use 0 to turn it off"
        )
    kept = mask != 0
    logprobs, old = torch.where(kept, logprobs, 0.0), torch.where(kept, old_logprobs, 0.0)
    advantages = torch.where(kept, advantages, 0.0)
    low, high = settings.clip_low * clip_factor, settings.clip_high * clip_factor
    log_ratio = (
        sequence_log_ratio(logprobs, old, kept) if settings.ratio == "sequence" else token_log_ratio(logprobs, old)
    )
    match settings.surrogate:
        case "clip":
            return surrogates.clip_loss(log_ratio, advantages, low, high, dual_clip)
        case "cispo":
            return surrogates.cispo_loss(log_ratio, logprobs, advantages, low, high)
        case "sapo":
            taus = settings.sapo_tau_positive, settings.sapo_tau_negative
            return surrogates.sapo_loss(log_ratio, advantages, *taus)
        case "reinforce":
            return surrogates.reinforce_loss(log_ratio, logprobs, advantages)
        case "gmpo":
            return surrogates.gmpo_loss(log_ratio, advantages, kept, low, high)
        case "dppo_tv":
            return surrogates.dppo_tv_loss(log_ratio, logprobs, old, advantages, low, high)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old +- clip) - R)^2) per token, of the shape of the inputs; clip 0 turns it off.

    Source: PPO's reference implementation (github.com/openai/baselines, ppo2).
    """
    error = (values - returns).square()
    if clip:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * error
