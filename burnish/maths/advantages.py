"""Group-relative advantages: how much better a completion is than the others of its group.

Only what turns rewards into one number a completion lives here; ratio clipping and aggregation are separate choices.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from burnish.contracts.errors import ConfigError
from burnish.maths.groups import Advantages as Advantages
from burnish.maths.groups import by_group, mean_of, spread_of

AdvantageStd = Literal["group", "batch", "none"]


def group_advantages(rewards: Tensor, group_ids: Sequence[str], std: AdvantageStd, epsilon: float = 1e-6) -> Advantages:
    """A = (r - mean of the group) / (s + epsilon), with s chosen by `std`.

    rewards: [N], NaN where a reward is missing; group_ids: N ids, in any order: rows of a group need not be adjacent.
    std: `group`, the group's unbiased standard deviation (GRPO, Shao et al. 2024, arXiv:2402.03300); `batch`, that of
    all rewards; `none`, no division (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).
    """
    batch = spread_of([reward for reward in rewards.double().tolist() if math.isfinite(reward)])

    def advantage(group: list[float], rows: list[int]) -> list[float]:
        mean = mean_of(group)
        scale = 1.0 if std == "none" else (spread_of(group) if std == "group" else batch) + epsilon
        return [(reward - mean) / scale for reward in group]

    return by_group(rewards, group_ids, advantage)


def rloo_advantages(rewards: Tensor, group_ids: Sequence[str]) -> Advantages:
    """A = r - mean of the other rewards of the group, for [N] rewards (Ahmadian et al. 2024, arXiv:2402.14740)."""

    def advantage(group: list[float], rows: list[int]) -> list[float]:
        mean, others = mean_of(group), len(group) - 1
        return [(reward - mean) * len(group) / others for reward in group]

    return by_group(rewards, group_ids, advantage)


def maxrl_advantages(rewards: Tensor, group_ids: Sequence[str]) -> Advantages:
    """A = (r - m) / m with m the group's mean, for [N] rewards: the gradient of log success instead of success.

    Raises ConfigError for a negative reward, which could turn the sign of the division. Source: maximum-likelihood RL,
    as in prime-rl.
    """
    lowest = min((reward for reward in rewards.tolist() if math.isfinite(reward)), default=0.0)
    if lowest < 0:
        raise ConfigError(
            f"update.advantage.estimator: maxrl divides by the group's mean and needs rewards >= 0, found {lowest:g}; "
            "use estimator=group, or scorers and penalties that stay above 0"
        )

    def advantage(group: list[float], rows: list[int]) -> list[float]:
        mean = mean_of(group)
        return [(reward - mean) / mean for reward in group]

    return by_group(rewards, group_ids, advantage)


def opo_advantages(rewards: Tensor, group_ids: Sequence[str], lengths: Sequence[int] | Tensor) -> Advantages:
    """A = r - sum(L r) / sum(L) with L the trained tokens, for [N] rewards (OPO, Hao et al. 2025, arXiv:2505.23585).

    The length-weighted mean is the baseline of least variance when a completion's gradient grows with its length.
    """
    tokens = torch.as_tensor(lengths).tolist()

    def advantage(group: list[float], rows: list[int]) -> list[float]:
        total = math.fsum(tokens[row] for row in rows)
        weighted = math.fsum(reward * tokens[row] for reward, row in zip(group, rows, strict=True))
        baseline = weighted / total if total else mean_of(group)
        return [reward - baseline for reward in group]

    return by_group(rewards, group_ids, advantage)


def whitened_group_advantages(rewards: Tensor, group_ids: Sequence[str]) -> Advantages:
    """A = (r - mean of the group) / sqrt(v + 1e-8), v the unbiased variance over the batch, for [N] rewards.

    Source: REINFORCE++-baseline, Hu 2025 (arXiv:2501.03262).
    """
    centred = group_advantages(rewards, group_ids, "none")
    return Advantages(_unit_variance(centred.values, centred.missing), centred.missing, centred.no_signal)


def gdpo_advantages(components: Tensor, weights: Sequence[float] | Tensor, group_ids: Sequence[str]) -> Advantages:
    """Each reward component normalised in its group, their weighted sum, brought to variance 1 over the batch.

    components: [N, C], NaN where a component is missing for a completion: it adds 0 there and is in no statistic of
    that component, and the others still count. weights: [C]. `missing` are completions without any weighted component,
    `no_signal` groups in which no weighted component differs. Source: GDPO (2026), as in TRL's `normalize_then_sum`.
    """
    factors = torch.as_tensor(weights, dtype=torch.float64).tolist()
    if components.ndim != 2 or components.shape[1] != len(factors):
        raise ValueError(f"components {tuple(components.shape)} and {len(factors)} weights do not match")
    total = torch.zeros(len(components), dtype=torch.float64, device=components.device)
    missing = torch.ones(len(components), dtype=torch.bool, device=components.device)
    no_signal = missing.clone()
    for column, factor in enumerate(factors):
        if factor == 0:
            continue
        normalised = group_advantages(components[:, column], group_ids, "group")
        total += factor * normalised.values.double()
        missing &= normalised.missing
        no_signal &= normalised.no_signal
    return Advantages(_unit_variance(total, missing), missing, no_signal)


def _unit_variance(centred: Tensor, missing: Tensor) -> Tensor:
    """[N] values of batch mean 0 over their unbiased standard deviation, float32; missing rows (0) are not counted."""
    count = int((~missing).sum())
    variance = math.fsum(value * value for value in centred.double().tolist()) / max(count - 1, 1)
    return (centred.double() / math.sqrt(variance + 1e-8)).float()
