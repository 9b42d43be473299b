"""From rewards to one advantage a token: the estimator that the settings name, then what makes rare successes count.

Sequence-level estimators compare the samples of a group and give all tokens of one the same number; token-level ones
(reinforce_pp, gae) carry the reward back along the tokens.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.config import RewardConfig
from burnish.contracts.errors import ConfigError
from burnish.maths.advantages import (
    Advantages,
    gdpo_advantages,
    group_advantages,
    maxrl_advantages,
    opo_advantages,
    rloo_advantages,
    whitened_group_advantages,
)
from burnish.maths.kl import kl_estimate
from burnish.maths.positive import amplify_positive
from burnish.maths.returns import adaptive_lambda, discounted_returns, gae, token_rewards, whiten
from burnish.stages.update_batch import Batch, Sample, scores

_TOKEN_LEVEL = ("reinforce_pp", "gae")


def mark_silent(samples: Sequence[Sample], settings: UpdateConfig, reward: RewardConfig) -> list[Sample]:
    """`samples` with `no_signal` where no reward in the group differs from another (gdpo: no component does)."""
    group_ids = [sample.rollout.group_id for sample in samples]
    if settings.advantage.estimator == "gdpo":
        found = gdpo_advantages(*_components(samples, reward), group_ids)
    else:
        found = group_advantages(scores(samples), group_ids, "none")
    silent = found.no_signal.tolist()
    return [dataclasses.replace(sample, no_signal=flag) for sample, flag in zip(samples, silent, strict=True)]


def with_advantages(
    batch: Batch,
    kept: Sequence[int],
    samples: Sequence[Sample],
    settings: UpdateConfig,
    *,
    kl_coef: float,
    reward: RewardConfig,
) -> Batch:
    """`batch`, whose rows are `samples[kept]`, with advantages and, for gae, the returns that the critic learns.

    Group statistics are over all samples that have a reward, trained or not; token-level estimators whiten over the
    trained tokens. `kl_coef` weighs the KL that kl.place `reward` takes off the reward: token by token for token-level
    estimators, its sum over the response for the others, before the group is looked at. It carries no gradient.
    Raises ConfigError for settings that contradict each other.
    """
    if settings.advantage.estimator in _TOKEN_LEVEL:
        batch = _token_level(batch, [samples[row] for row in kept], settings, kl_coef)
    else:
        values = _sequence_level(samples, settings, kl_coef, reward).values[list(kept)]
        batch = dataclasses.replace(batch, advantages=values[:, None] * batch.mask)
    advantages = batch.advantages
    if settings.filters.malformed == "penalize":
        malformed = torch.tensor([samples[row].malformed for row in kept], dtype=torch.bool)
        advantages = torch.where(malformed[:, None] & batch.mask, settings.filters.malformed_advantage, advantages)
    return dataclasses.replace(batch, advantages=amplify_positive(advantages, settings.positive.advantage_weight))


def _sequence_level(
    samples: Sequence[Sample], settings: UpdateConfig, kl_coef: float, reward: RewardConfig
) -> Advantages:
    estimator, group_ids = settings.advantage.estimator, [sample.rollout.group_id for sample in samples]
    values = scores(samples)
    in_reward = bool(settings.kl.coef) and settings.kl.place == "reward"
    if estimator == "gdpo":
        if in_reward:
            raise ConfigError(
                "update.kl.place is 'reward': gdpo normalises each component of the reward, which undoes the weight "
                "of a KL term; use update.kl.place=loss"
            )
        return gdpo_advantages(*_components(samples, reward), group_ids)
    if in_reward:
        values = values - kl_coef * torch.tensor([_kl(sample, settings) for sample in samples], dtype=torch.float64)
    if estimator == "rloo":
        return rloo_advantages(values, group_ids)
    if estimator == "maxrl":
        return maxrl_advantages(values, group_ids)
    if estimator == "opo":
        return opo_advantages(values, group_ids, [sample.length for sample in samples])
    if estimator == "reinforce_pp_baseline":
        return whitened_group_advantages(values, group_ids)
    return group_advantages(values, group_ids, settings.advantage.std or "group")


def _components(samples: Sequence[Sample], reward: RewardConfig) -> tuple[Tensor, Tensor]:
    """[N, C] scores, NaN where missing, and their [C] weights, as rewards.fusion would add them up.

    A component that no scorer is configured for (the overlong penalty, a task's default verifier) weighs 1. A closed
    gate makes all of a sample's components 0.
    """
    weight_of = {scorer.name: scorer.weight for scorer in reward.scorers}
    gates = [scorer.name for scorer in reward.scorers if scorer.gate]
    found = {name for sample in samples if sample.reward for name in sample.reward.components}
    names = sorted(name for name in found if weight_of.get(name, 1.0))
    table = torch.full((len(samples), len(names)), math.nan, dtype=torch.float64)
    for row, sample in enumerate(samples):
        if sample.score is None or sample.reward is None:
            continue
        components = sample.reward.components
        closed = any(components.get(gate) == 0 for gate in gates)
        for column, name in enumerate(names):
            if (value := components.get(name)) is not None:
                table[row, column] = 0.0 if closed else value
    return table, torch.tensor([weight_of.get(name, 1.0) for name in names], dtype=torch.float64)


def _kl(sample: Sample, settings: UpdateConfig) -> float:
    """KL to the reference summed over the response, nats; NaN where it is not known."""
    if sample.logprob is None or sample.logprob.ref_logprobs is None:
        return math.nan
    old, reference = torch.tensor(sample.logprob.old_logprobs), torch.tensor(sample.logprob.ref_logprobs)
    tokens = kl_estimate(old, reference, settings.kl.estimator or "k1")
    return float(tokens[torch.tensor(sample.rollout.loss_mask) == 1].double().sum())


def _token_level(batch: Batch, samples: Sequence[Sample], settings: UpdateConfig, kl_coef: float) -> Batch:
    """The score sits on the last trained token, KL on every one."""
    choice, mask = settings.advantage, batch.mask
    if not samples:
        return batch
    last = scores(samples).float()
    if settings.needs_critic and settings.critic.score_clip:
        last = last.clamp(-settings.critic.score_clip, settings.critic.score_clip)
    kl = None
    if batch.ref_logprobs is not None and settings.kl.place == "reward":
        kl = kl_estimate(batch.trainer_logprobs, batch.ref_logprobs, settings.kl.estimator or "k1")
    rewards = token_rewards(last, kl, kl_coef, mask)
    if batch.values is None:
        return dataclasses.replace(batch, advantages=whiten(discounted_returns(rewards, mask, choice.gamma), mask))
    lengths = mask.sum(dim=1)
    policy_lambda: float | Tensor = 1.0 if choice.gae_lambda is None else choice.gae_lambda
    if choice.length_adaptive:
        policy_lambda = adaptive_lambda(lengths, choice.length_adaptive)
    value_lambda = 1.0 if choice.value_lambda is None else choice.value_lambda
    advantages, _ = gae(rewards, batch.values, mask, choice.gamma, policy_lambda)
    _, returns = gae(rewards, batch.values, mask, choice.gamma, value_lambda)
    if choice.whiten:
        advantages = whiten(advantages, mask)
    return dataclasses.replace(batch, advantages=advantages, returns=returns)
