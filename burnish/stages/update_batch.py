"""From three record files to what is trained on: joined by sample_id, advantages by group, filters applied and counted.

What a filter leaves out is not a row of the batch, so it is in no denominator either.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TypeVar

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import ContractError
from burnish.contracts.records import Logprob, Reward, Rollout
from burnish.maths.advantages import group_advantages


@dataclass(frozen=True)
class Batch:
    """N trainable samples, sorted by sample_id; token tensors are [N, R] with R the longest response."""

    rollouts: list[Rollout]
    advantages: Tensor
    """[N] float32."""
    inside: Tensor
    """[N, R] bool: the token exists."""
    mask: Tensor
    """[N, R] bool: the token is trained."""
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    ref_logprobs: Tensor | None
    """None without a KL term."""

    def group_rows(self) -> list[list[int]]:
        """Rows of each group, in order of group id."""
        groups: dict[str, list[int]] = {}
        for row, rollout in enumerate(self.rollouts):
            groups.setdefault(rollout.group_id, []).append(row)
        return [groups[group_id] for group_id in sorted(groups)]


def build_batch(
    rollouts: Sequence[Rollout], rewards: Sequence[Reward], logprobs: Sequence[Logprob], settings: UpdateConfig
) -> tuple[Batch, dict[str, float | None]]:
    """The batch and figures about it: rewards, advantages, and how many samples each filter left out.

    An aborted sample and one without a reward take no part in their group's mean. One without logprobs, or one that
    was cut off while `filters.truncated` is set, does, but is not trained. `filters.zero_variance` leaves out whole
    groups whose rewards are equal. Raises ContractError when the files do not belong together.
    """
    ordered = sorted(rollouts, key=lambda rollout: rollout.sample_id)
    known = _by_id("rollouts", ordered).keys()
    reward_of, logprob_of = _by_id("rewards", rewards), _by_id("logprobs", logprobs)
    for name, found in (("rewards", reward_of), ("logprobs", logprob_of)):
        strangers = sorted(found.keys() - known)
        if strangers:
            raise ContractError(f"{name}.parquet: sample {strangers[0]!r} is not in rollouts.parquet")
    values = [_reward(rollout, reward_of.get(rollout.sample_id)) for rollout in ordered]
    group_ids = [rollout.group_id for rollout in ordered]
    rewards_n = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
    advantages = group_advantages(rewards_n, group_ids, settings.advantage.std or "group")
    dropped = dict.fromkeys(("aborted", "no_reward", "no_logprobs", "zero_variance", "truncated", "no_tokens"), 0)
    rows: list[int] = []
    for row, rollout in enumerate(ordered):
        reason = _why_not(rollout, values[row], logprob_of, bool(advantages.no_signal[row]), settings)
        if reason:
            dropped[reason] += 1
        else:
            rows.append(row)
    batch = _tensors([ordered[row] for row in rows], advantages.values[rows], logprob_of, settings)
    metrics = _figures(ordered, values, advantages.values[rows], advantages.no_signal)
    metrics |= {"samples_trained": float(len(rows))}
    metrics |= {f"dropped/{reason}": float(count) for reason, count in dropped.items()}
    metrics["groups_dropped"] = float(len(set(group_ids)) - len({group_ids[row] for row in rows}))
    return batch, metrics


_RecordT = TypeVar("_RecordT", Rollout, Reward, Logprob)


def _by_id(name: str, records: Iterable[_RecordT]) -> dict[str, _RecordT]:
    found: dict[str, _RecordT] = {}
    for record in records:
        if record.sample_id in found:
            raise ContractError(f"{name}.parquet: sample {record.sample_id!r} is there twice")
        found[record.sample_id] = record
    return found


def _reward(rollout: Rollout, reward: Reward | None) -> float | None:
    """The sample's reward where it has one: not finite is missing, and so is that of an aborted sample."""
    value = None if reward is None or rollout.finish_reason == "abort" else reward.reward
    return value if value is not None and math.isfinite(value) else None


def _why_not(
    rollout: Rollout, value: float | None, logprob_of: dict[str, Logprob], no_signal: bool, settings: UpdateConfig
) -> str | None:
    if rollout.finish_reason == "abort":
        return "aborted"
    if value is None:
        return "no_reward"
    if rollout.sample_id not in logprob_of:
        return "no_logprobs"
    if settings.filters.zero_variance and no_signal:
        return "zero_variance"
    if settings.filters.truncated and rollout.finish_reason == "length":
        return "truncated"
    if not any(rollout.loss_mask):
        return "no_tokens"
    return None


def _tensors(
    rollouts: list[Rollout], advantages: Tensor, logprob_of: dict[str, Logprob], settings: UpdateConfig
) -> Batch:
    shape = (len(rollouts), max((len(rollout.response_ids) for rollout in rollouts), default=0))
    inside, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    old, sampler, reference = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for row, rollout in enumerate(rollouts):
        length = len(rollout.response_ids)
        found = logprob_of[rollout.sample_id]
        inside[row, :length] = True
        mask[row, :length] = torch.tensor(rollout.loss_mask) == 1
        sampler[row, :length] = torch.tensor(rollout.rollout_logprobs)
        old[row, :length] = _aligned(found.sample_id, "old_logprobs", found.old_logprobs, length)
        if settings.kl.coef:
            if found.ref_logprobs is None:
                raise ContractError(
                    f"logprob {found.sample_id}: ref_logprobs is missing but update.kl.coef is {settings.kl.coef}; "
                    "run the logprob stage with the same update.kl.coef"
                )
            reference[row, :length] = _aligned(found.sample_id, "ref_logprobs", found.ref_logprobs, length)
    return Batch(rollouts, advantages, inside, mask, old, sampler, reference if settings.kl.coef else None)


def _aligned(sample_id: str, field: str, values: list[float], length: int) -> Tensor:
    if len(values) != length:
        raise ContractError(
            f"logprob {sample_id}: {field} has {len(values)} values, the rollout has {length} response tokens"
        )
    return torch.tensor(values)


def _figures(
    rollouts: list[Rollout], values: list[float | None], advantages: Tensor, no_signal: Tensor
) -> dict[str, float | None]:
    rewards = [value for value in values if value is not None]
    sizes: dict[str, int] = {}
    for rollout in rollouts:
        sizes[rollout.group_id] = sizes.get(rollout.group_id, 0) + 1
    silent = {rollout.group_id for rollout, silent in zip(rollouts, no_signal.tolist(), strict=True) if silent}
    count = len(advantages)
    return {
        "samples": float(len(rollouts)),
        "groups": float(len(sizes)),
        "groups_incomplete": float(sum(size < max(sizes.values()) for size in sizes.values())),
        "reward_mean": fmean(rewards) if rewards else None,
        "reward_std": pstdev(rewards) if rewards else None,
        "zero_variance_share": len(silent) / len(sizes) if sizes else None,
        "truncated_share": fmean(rollout.finish_reason == "length" for rollout in rollouts) if rollouts else None,
        "advantage_mean": float(advantages.mean()) if count else None,
        "advantage_std": float(advantages.std(unbiased=False)) if count else None,
        "advantage_max": float(advantages.abs().max()) if count else None,
        "negative_share": float((advantages < 0).float().mean()) if count else None,
    }
