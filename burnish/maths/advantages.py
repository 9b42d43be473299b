"""Group-relative advantages: how much better a completion is than the others of its group.

Only the centring and scaling of rewards live here; ratio clipping and aggregation are separate choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

AdvantageStd = Literal["group", "batch", "none"]

# Rewards of a group that agree to this (relative to the largest, or absolute below 1) are equal: what is left of them
# after centring is rounding noise, which division by a tiny standard deviation would turn into an advantage.
_EQUAL = 1e-6


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of N completions and what is known about their groups."""

    values: Tensor
    """[N] float32; exactly 0 where nothing can be compared."""
    missing: Tensor
    """[N] bool: the reward was NaN, so the completion is in no mean and no standard deviation."""
    no_signal: Tensor
    """[N] bool: the completion's group holds fewer than two different rewards."""


def group_advantages(
    rewards: Tensor, group_ids: Sequence[str], std: AdvantageStd, epsilon: float = 1e-6
) -> GroupAdvantages:
    """A = (r - mean of the group) / (s + epsilon), with s chosen by `std`.

    rewards: [N], NaN where a reward is missing; group_ids: N ids, in any order: rows of a group need not be adjacent.
    std: `group`, the group's unbiased standard deviation (GRPO, Shao et al. 2024, arXiv:2402.03300); `batch`, that of
    all rewards; `none`, 1 (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).

    A group whose rewards are equal, a group of one and a missing reward give exactly 0: there is nothing to compare.
    (Some systems give a group of one its raw reward; without a baseline that is not an advantage.)
    """
    if rewards.ndim != 1 or len(rewards) != len(group_ids):
        raise ValueError(f"rewards {tuple(rewards.shape)} and {len(group_ids)} group ids do not match")
    rewards = rewards.double()
    missing = rewards.isnan()
    values = torch.zeros_like(rewards)
    no_signal = torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)
    batch_std = _spread(rewards[~missing])
    for rows in _rows_by_group(group_ids):
        present = torch.tensor([row for row in rows if not missing[row]], dtype=torch.long, device=rewards.device)
        group = rewards[present]
        if not _differ(group):
            continue
        no_signal[rows] = False
        centred = group - group.mean()
        if std != "none":
            centred = centred / ((_spread(group) if std == "group" else batch_std) + epsilon)
        values[present] = centred
    return GroupAdvantages(values.float(), missing, no_signal)


def _rows_by_group(group_ids: Sequence[str]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for row, group_id in enumerate(group_ids):
        groups.setdefault(group_id, []).append(row)
    return list(groups.values())


def _differ(group: Tensor) -> bool:
    if len(group) < 2:
        return False
    return bool(group.max() - group.min() > _EQUAL * group.abs().max().clamp(min=1.0))


def _spread(rewards: Tensor) -> Tensor:
    return rewards.std(unbiased=True) if len(rewards) > 1 else rewards.new_zeros(())
