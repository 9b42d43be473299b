"""What it means to compare rewards within a group: which count, and when there is nothing to compare.

Sums are exactly rounded (math.fsum), so that the order of rows changes no bit of an advantage.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Rewards of a group that agree to this (relative to the largest, or absolute below 1) are equal: what is left of them
# after centring is rounding noise, which division by a tiny standard deviation would turn into an advantage.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Advantages:
    """Advantages of N completions and what is known about their groups.

    A missing reward (not finite) is in no mean and no deviation, and its completion has advantage exactly 0. So have
    all of a group whose rewards are equal, and a group of one: there is nothing to compare.
    """

    values: Tensor
    """[N] float32."""
    missing: Tensor
    """[N] bool: the completion has no reward."""
    no_signal: Tensor
    """[N] bool: the completion's group holds fewer than two different rewards."""


def by_group(
    rewards: Tensor, group_ids: Sequence[str], advantage: Callable[[list[float], list[int]], list[float]]
) -> Advantages:
    """`advantage` maps the rewards that a group has, and their rows, to their advantages; it sees only real groups."""
    if rewards.ndim != 1 or len(rewards) != len(group_ids):
        raise ValueError(f"rewards {tuple(rewards.shape)} and {len(group_ids)} group ids do not match")
    missing = ~rewards.isfinite()
    present = (~missing).tolist()
    found = rewards.double().tolist()
    values, no_signal = [0.0] * len(found), [True] * len(found)
    groups: dict[str, list[int]] = {}
    for row, group_id in enumerate(group_ids):
        groups.setdefault(group_id, []).append(row)
    for rows in groups.values():
        compared = [row for row in rows if present[row]]
        group = [found[row] for row in compared]
        if len(group) < 2 or max(group) - min(group) <= _EQUAL * max(1.0, *map(abs, group)):
            continue
        for row in rows:
            no_signal[row] = False
        for row, value in zip(compared, advantage(group, compared), strict=True):
            values[row] = value
    device = rewards.device
    return Advantages(
        torch.tensor(values, dtype=torch.float32, device=device),
        missing,
        torch.tensor(no_signal, dtype=torch.bool, device=device),
    )


def mean_of(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def spread_of(values: list[float]) -> float:
    """Unbiased standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = mean_of(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
