"""Token-level credit: rewards on tokens, discounted returns and generalised advantages.

Tokens outside the mask (observations, padding) are stepped over: credit passes through them unchanged, undiscounted.
"""

import torch
from torch import Tensor

from burnish.contracts.errors import ContractError


def token_rewards(scores: Tensor, kl: Tensor | None, coef: float, mask: Tensor) -> Tensor:
    """[N, R] float32: -coef * kl on every trained token, and the [N] scores added on the last trained one.

    kl: [N, R] k1 estimates in nats, or None; mask: [N, R], 1 on trained tokens. The last trained token is the end of
    sequence, or the last kept token of a truncated response; never padding or an observation. Raises ContractError for
    a score that is not finite on a row with trained tokens. Source: Ouyang et al. 2022 (arXiv:2203.02155).
    """
    kept = mask != 0
    rows = kept.any(dim=1)
    lost = (rows & ~scores.isfinite()).nonzero()
    if len(lost):
        row = int(lost[0])
        raise ContractError(
            f"the score of row {row} is {scores[row].item()}; leave samples without a reward out of the batch"
        )
    rewards = torch.zeros(kept.shape, dtype=torch.float32, device=kept.device)
    if kl is not None:
        rewards = torch.where(kept, -coef * kl.float(), rewards)
    last = kept.shape[1] - 1 - kept.flip(1).int().argmax(dim=1)
    rewards[rows, last[rows]] += scores[rows].float()
    return rewards


def discounted_returns(token_rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + gamma R_next over trained tokens, [N, R] float32, 0 outside the mask.

    Source: REINFORCE++, Hu 2025 (arXiv:2501.03262); carrying through observations as in verl.
    """
    kept = mask != 0
    rewards = token_rewards.double()
    returns = torch.zeros_like(rewards)
    running = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(kept[:, t], rewards[:, t] + gamma * running, running)
        returns[:, t] = running
    return torch.where(kept, returns, 0.0).float()


def gae(
    token_rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns = advantages + values, [N, R] float32, not whitened, 0 outside the mask.

    delta_t = r_t + gamma V_next - V_t; A_t = delta_t + gamma lam A_next, where next is the next trained token and
    nothing follows the last one. lam: a number or [N], one a response. Observations are as good as deleted.
    Source: Schulman et al. 2015 (arXiv:1506.02438).
    """
    kept = mask != 0
    rewards, value = token_rewards.double(), values.double()
    decay = gamma * torch.as_tensor(lam, dtype=torch.float64, device=rewards.device)
    advantages = torch.zeros_like(rewards)
    running, following = rewards.new_zeros(len(rewards)), rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * following - value[:, t]
        running = torch.where(kept[:, t], delta + decay * running, running)
        following = torch.where(kept[:, t], value[:, t], following)
        advantages[:, t] = running
    advantages = torch.where(kept, advantages, 0.0)
    return advantages.float(), torch.where(kept, advantages + value, 0.0).float()


def adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """[N] float32: 1 - 1 / max(alpha * length, 1), so that long responses are discounted less.

    Source: VAPO, Yue et al. 2025 (arXiv:2504.05118).
    """
    return (1.0 - 1.0 / (alpha * lengths.double()).clamp(min=1.0)).float()


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(v - mean) / sqrt(unbiased variance + 1e-8) over the trained tokens of [N, R], float32, 0 outside the mask.

    Fewer than two tokens, or values that agree up to rounding, give exactly 0.
    """
    kept = mask != 0
    chosen = values.double()[kept]
    whitened = torch.zeros(values.shape, dtype=torch.float32, device=values.device)
    if len(chosen) < 2 or chosen.max() - chosen.min() <= 1e-6 * chosen.abs().max().clamp(min=1.0):
        return whitened
    whitened[kept] = ((chosen - chosen.mean()) * (chosen.var(unbiased=True) + 1e-8).rsqrt()).float()
    return whitened


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns) over the trained tokens: 1 a perfect critic, 0 a constant one.

    Below 0 it is worse than a constant. None where the returns do not vary.
    """
    kept = mask != 0
    target = returns.double()[kept]
    if len(target) < 2 or target.max() == target.min():
        return None
    return float(1.0 - (target - values.double()[kept]).var() / target.var())
