"""A round's three files made into the batch that is trained on, with figures and warnings about it.

Order: join, filter, estimate advantages, then keep fewer negative samples and tokens where the settings say so.
"""

import dataclasses
from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.config import RewardConfig
from burnish.contracts.records import Logprob, Reward, Rollout
from burnish.maths.kl import kl_estimate
from burnish.maths.positive import negative_floor_mask, negative_keep
from burnish.maths.returns import explained_variance
from burnish.stages.update_advantages import mark_silent, with_advantages
from burnish.stages.update_batch import Batch, Sample, join, stack
from burnish.stages.update_filters import FILTERS, dropped_by

Figures = dict[str, float | None]


def build_batch(
    rollouts: Sequence[Rollout],
    rewards: Sequence[Reward],
    logprobs: Sequence[Logprob],
    settings: UpdateConfig,
    *,
    kl_coef: float = 0.0,
    reward: RewardConfig | None = None,
    seed: int = 0,
) -> tuple[Batch, Figures]:
    """The batch and figures about it: rewards, advantages, and how many samples each filter left out.

    kl_coef: this round's weight of a KL term in the reward; reward: weights and gates of the components, for gdpo;
    seed: for the choice of negative samples. Raises ContractError when the files do not belong together, ConfigError
    when the settings do not.
    """
    reward = reward or RewardConfig()
    samples = mark_silent(join(rollouts, rewards, logprobs), settings, reward)
    reasons = dropped_by(samples, settings.filters)
    kept = [row for row, reason in enumerate(reasons) if reason is None]
    batch = stack([samples[row] for row in kept], settings)
    batch = with_advantages(batch, kept, samples, settings, kl_coef=kl_coef, reward=reward)
    whole = batch
    batch = _fewer_negatives(batch, settings, seed)
    dropped = dict.fromkeys((*FILTERS, "negative"), 0)
    for reason in reasons:
        if reason:
            dropped[reason] += 1
    dropped["negative"] = len(whole.rollouts) - len(batch.rollouts)
    figures = _round_figures(samples) | _batch_figures(batch)
    figures |= {f"dropped/{name}": float(count) for name, count in dropped.items()}
    groups = {sample.rollout.group_id for sample in samples}
    figures["groups_dropped"] = float(len(groups) - len(set(batch.group_ids())))
    figures["tokens_dropped"] = float(whole.mask.sum() - batch.mask.sum())
    return batch, figures


def _fewer_negatives(batch: Batch, settings: UpdateConfig, seed: int) -> Batch:
    """Without the samples that negative_keep and the tokens that negative_token_floor leave out.

    Neither is in a denominator then: the rows are gone, the tokens leave the mask.
    """
    positive = settings.positive
    if positive.negative_keep < 1:
        sample_ids = [rollout.sample_id for rollout in batch.rollouts]
        keep = negative_keep(batch.row_advantages(), batch.group_ids(), sample_ids, positive.negative_keep, seed)
        batch = batch.take(keep.nonzero().flatten().tolist())
    if positive.negative_token_floor:
        floor = positive.negative_token_floor
        mask = negative_floor_mask(batch.mask, batch.trainer_logprobs, batch.advantages, floor)
        batch = dataclasses.replace(batch, mask=mask)
    return batch


def _round_figures(samples: Sequence[Sample]) -> Figures:
    """About everything that was sampled, trained on or not. `entropy`, `kl` and `mismatch` are before the update."""
    scores = [score for sample in samples if (score := sample.score) is not None]
    sizes: dict[str, int] = {}
    for sample in samples:
        sizes[sample.rollout.group_id] = sizes.get(sample.rollout.group_id, 0) + 1
    silent = {sample.rollout.group_id for sample in samples if sample.no_signal}
    finished = [sample for sample in samples if sample.rollout.finish_reason != "abort"]
    return {
        "samples": float(len(samples)),
        "groups": float(len(sizes)),
        "groups_incomplete": float(sum(size < max(sizes.values()) for size in sizes.values())),
        "reward_mean": fmean(scores) if scores else None,
        "reward_std": pstdev(scores) if scores else None,
        "zero_variance_share": len(silent) / len(sizes) if sizes else None,
        "truncated_share": fmean(sample.rollout.finish_reason == "length" for sample in samples) if samples else None,
        "response_length": fmean(sample.length for sample in finished) if finished else None,
        **_token_figures(samples),
    }


def _token_figures(samples: Sequence[Sample]) -> Figures:
    """Means over the tokens that the policy generated, as the logprob stage saw them; kl is the k3 estimate."""
    entropy, kl, mismatch = [torch.zeros(0)], [torch.zeros(0)], [torch.zeros(0)]
    for sample in samples:
        if sample.logprob is None:
            continue
        generated = torch.tensor(sample.rollout.loss_mask) == 1
        old = torch.tensor(sample.logprob.old_logprobs)[generated]
        entropy.append(torch.tensor(sample.logprob.entropy)[generated])
        mismatch.append((old - torch.tensor(sample.rollout.rollout_logprobs)[generated]).abs())
        if sample.logprob.ref_logprobs is not None:
            kl.append(kl_estimate(old, torch.tensor(sample.logprob.ref_logprobs)[generated], "k3"))
    return {"entropy": _mean(entropy), "kl": _mean(kl), "mismatch": _mean(mismatch)}


def _batch_figures(batch: Batch) -> Figures:
    """About what is trained on; advantages are a sample's mean over its tokens, but the maximum is a token's."""
    rows = batch.row_advantages()
    count = len(rows)
    figures: Figures = {
        "samples_trained": float(count),
        "advantage_mean": float(rows.mean()) if count else None,
        "advantage_std": float(rows.std(unbiased=False)) if count else None,
        "advantage_max": float(batch.advantages.abs().max()) if count else None,
        "negative_share": float((rows < 0).float().mean()) if count else None,
    }
    if batch.values is not None and batch.returns is not None:
        figures |= {
            "value_mean": _mean([batch.values[batch.mask]]),
            "return_mean": _mean([batch.returns[batch.mask]]),
            "explained_variance": explained_variance(batch.values, batch.returns, batch.mask),
        }
    return figures


def _mean(parts: list[Tensor]) -> float | None:
    values = torch.cat(parts).double()
    return float(values.mean()) if values.numel() else None
