"""How far sampler and trainer disagree, and what the update's settings make of it: the metrics of the logprob stage.

All figures are over the tokens that the policy generated.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from burnish.contracts.algorithm import CorrectionConfig, LossConfig, UpdateConfig
from burnish.contracts.errors import ContractError
from burnish.contracts.records import Rollout
from burnish.maths.correction import correction_weights, effective_sample_share
from burnish.maths.diagnostics import mismatch
from burnish.maths.kl import kl_estimate

_WORST_TOKENS = 10


def figures(
    rollouts: Sequence[Rollout],
    old: Sequence[Tensor],
    entropy: Sequence[Tensor],
    reference: Sequence[Tensor] | None,
    values: Sequence[Tensor] | None,
    settings: UpdateConfig,
    ratio_bounds: tuple[float, float],
) -> dict[str, float | None]:
    """Scalars of the stage from [R] tensors of each rollout. Raises ContractError when no token was generated."""
    mask = _padded([torch.tensor(rollout.loss_mask) for rollout in rollouts]) == 1
    sampler = _padded([torch.tensor(rollout.rollout_logprobs) for rollout in rollouts])
    trainer = _padded(old)
    found = mismatch(trainer[mask], sampler[mask], ratio_bounds, mask.sum(1).tolist())
    if found is None:
        raise ContractError("rollouts.parquet: loss_mask is 0 everywhere; there is no token to train on")
    # With bypass the ratio itself starts from the sampler, and no weight is applied.
    applied = CorrectionConfig(mode="none") if settings.correction.bypass else settings.correction
    correction = correction_weights(trainer, sampler, mask, applied)
    kl = None if reference is None else float(kl_estimate(trainer, _padded(reference), "k3")[mask].mean())
    return {
        "entropy": float(_padded(entropy)[mask].mean()),
        "kl_ref": kl,
        "value_mean": None if values is None else float(_padded(values)[mask].mean()),
        "mismatch_kl": found.kl,
        "mismatch_k3": found.k3,
        "mismatch_mean_abs": found.mean_abs,
        "mismatch_chi2": found.chi2,
        "mismatch_chi2_sequence": found.chi2_sequence,
        "ratio_outside_share": found.share_outside,
        "token_mult_prob_error": found.token_mult_prob_error,
        "ess": effective_sample_share(correction.weights[mask]),
        "correction_rejected_share": float(correction.rejected_sequences.float().mean()),
        "bypass_clip_share": bypass_clip_share(trainer, sampler, mask, settings.loss),
    }


def bypass_clip_share(old: Tensor, sampler: Tensor, mask: Tensor, settings: LossConfig) -> float | None:
    """Share of tokens that leave the clip range before the first step, were the sampler's logprobs taken as the old
    ones. With recomputed ones the ratio is 1 there and the share 0, so this is what recomputing saves.

    old, sampler, mask: [N, R]. None for a loss without a clip.
    """
    low, high = settings.clip_low or 0.0, settings.clip_high or 0.0
    if settings.surrogate == "dppo_tv":
        moved = old.exp() - sampler.exp()
        outside = (moved < -low) | (moved > high)
    elif settings.surrogate in {"clip", "cispo", "gmpo"}:
        change = torch.where(mask, old - sampler, 0.0).double()
        if settings.ratio == "sequence":
            change = (change.sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(change)
        # gmpo clips the logarithm of the ratio.
        distance = change if settings.surrogate == "gmpo" else change.expm1()
        outside = (distance < -low) | (distance > high)
    else:
        return None
    return float(outside[mask].double().mean())


def worst_tokens(rollouts: Sequence[Rollout], old: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Where sampler and trainer disagree most, the worst first."""
    found = [
        (abs(trainer - sampler), rollout.sample_id, position, trainer, sampler)
        for rollout, values in zip(rollouts, old, strict=True)
        for position, (trainer, sampler, mask) in enumerate(
            zip(values.tolist(), rollout.rollout_logprobs, rollout.loss_mask, strict=True)
        )
        if mask
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [
        {"sample_id": sample_id, "position": position, "trainer": trainer, "sampler": sampler}
        for _, sample_id, position, trainer, sampler in found[:_WORST_TOKENS]
    ]


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """[N, R] from N rows of their own length, 0 beyond."""
    return pad_sequence(list(rows), batch_first=True)
