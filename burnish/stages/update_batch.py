"""What one update trains on: records joined by sample_id, then stacked into tensors.

What a filter leaves out never becomes a row of the batch, so it is in no denominator either.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import ContractError
from burnish.contracts.records import Logprob, Reward, Rollout


@dataclass(frozen=True)
class Sample:
    """One row of the rollouts and what is known about it."""

    rollout: Rollout
    reward: Reward | None
    logprob: Logprob | None
    no_signal: bool = False
    """Fewer than two different rewards in its group, as update_advantages.mark_silent finds."""

    @property
    def score(self) -> float | None:
        """The reward where there is one: not finite is missing, and so is that of an aborted sample."""
        value = None if self.reward is None or self.rollout.finish_reason == "abort" else self.reward.reward
        return value if value is not None and math.isfinite(value) else None

    @property
    def malformed(self) -> bool:
        """The reward stage found its thinking tags wrong."""
        return self.reward is not None and "malformed" in self.reward.flags

    @property
    def length(self) -> int:
        """Tokens that the policy generated."""
        return sum(self.rollout.loss_mask)


@dataclass(frozen=True)
class Batch:
    """N trainable samples, sorted by sample_id; token tensors are [N, R] with R the longest response.

    Rows of one episode (turns) are rows like any others.
    """

    rollouts: list[Rollout]
    inside: Tensor
    """[N, R] bool: the token exists."""
    mask: Tensor
    """[N, R] bool: the token is trained."""
    advantages: Tensor
    """[N, R] float32; 0 outside `mask`."""
    old_logprobs: Tensor
    """What ratios are measured from: `trainer_logprobs`, or under correction.bypass `rollout_logprobs`."""
    trainer_logprobs: Tensor
    """Recomputed by the trainer's model before the first step of the round."""
    rollout_logprobs: Tensor
    """Recorded by the sampler."""
    ref_logprobs: Tensor | None = None
    """None without a KL term."""
    values: Tensor | None = None
    """The critic's, before the first step of the round; None without one."""
    returns: Tensor | None = None
    """What the critic learns; None without one."""

    def take(self, rows: Sequence[int], device: torch.device | None = None) -> "Batch":
        """Only `rows`, in that order, on `device`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        index = torch.tensor(rows, dtype=torch.long)
        tensors = {name: value[index].to(device) for name, value in fields.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, rollouts=[self.rollouts[row] for row in rows], **tensors)

    def group_ids(self) -> list[str]:
        return [rollout.group_id for rollout in self.rollouts]

    def group_rows(self) -> list[list[int]]:
        """Rows of each group, in order of group id."""
        groups: dict[str, list[int]] = {}
        for row, group_id in enumerate(self.group_ids()):
            groups.setdefault(group_id, []).append(row)
        return [groups[group_id] for group_id in sorted(groups)]

    def row_advantages(self) -> Tensor:
        """[N] float32: the mean advantage of each row's trained tokens, whose sign is that of the sample."""
        return (self.advantages * self.mask).sum(dim=1) / self.mask.sum(dim=1).clamp(min=1)


def join(rollouts: Sequence[Rollout], rewards: Sequence[Reward], logprobs: Sequence[Logprob]) -> list[Sample]:
    """A sample for each rollout, sorted by id. Raises ContractError when the files do not belong together."""
    ordered = sorted(rollouts, key=lambda rollout: rollout.sample_id)
    known = _by_id("rollouts", ordered).keys()
    reward_of, logprob_of = _by_id("rewards", rewards), _by_id("logprobs", logprobs)
    for name, found in (("rewards", reward_of), ("logprobs", logprob_of)):
        strangers = sorted(found.keys() - known)
        if strangers:
            raise ContractError(f"{name}.parquet: sample {strangers[0]!r} is not in rollouts.parquet")
    for rollout in ordered:
        if rollout.sample_id in logprob_of:
            _check_lengths(logprob_of[rollout.sample_id], len(rollout.response_ids))
    return [Sample(rollout, reward_of.get(rollout.sample_id), logprob_of.get(rollout.sample_id)) for rollout in ordered]


def scores(samples: Sequence[Sample]) -> Tensor:
    """[N] float64, NaN where a reward is missing."""
    found = [math.nan if (score := sample.score) is None else score for sample in samples]
    return torch.tensor(found, dtype=torch.float64)


def stack(samples: Sequence[Sample], settings: UpdateConfig) -> Batch:
    """`samples`, all with logprobs, as tensors; advantages are still 0.

    Raises ContractError when a record lacks what the settings need.
    """
    shape = (len(samples), max((len(sample.rollout.response_ids) for sample in samples), default=0))
    inside, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    trainer, sampler, reference, values = (torch.zeros(shape) for _ in range(4))
    for row, sample in enumerate(samples):
        length = len(sample.rollout.response_ids)
        inside[row, :length] = True
        mask[row, :length] = torch.tensor(sample.rollout.loss_mask) == 1
        sampler[row, :length] = torch.tensor(sample.rollout.rollout_logprobs)
        trainer[row, :length] = _tokens(sample, "old_logprobs", "")
        if settings.kl.coef:
            reference[row, :length] = _tokens(sample, "ref_logprobs", f"update.kl.coef is {settings.kl.coef}")
        if settings.needs_critic:
            values[row, :length] = _tokens(sample, "values", "update.advantage.estimator is gae")
    # The sampler's number means nothing on tokens that the policy did not generate.
    sampler = torch.where(mask, sampler, trainer)
    return Batch(
        rollouts=[sample.rollout for sample in samples],
        inside=inside,
        mask=mask,
        advantages=torch.zeros(shape),
        old_logprobs=sampler if settings.correction.bypass else trainer,
        trainer_logprobs=trainer,
        rollout_logprobs=sampler,
        ref_logprobs=reference if settings.kl.coef else None,
        values=values if settings.needs_critic else None,
    )


_RecordT = TypeVar("_RecordT", Rollout, Reward, Logprob)


def _by_id(name: str, records: Iterable[_RecordT]) -> dict[str, _RecordT]:
    found: dict[str, _RecordT] = {}
    for record in records:
        if record.sample_id in found:
            raise ContractError(f"{name}.parquet: sample {record.sample_id!r} is there twice")
        found[record.sample_id] = record
    return found


def _check_lengths(logprob: Logprob, tokens: int) -> None:
    for field in ("old_logprobs", "ref_logprobs", "entropy", "values"):
        column = getattr(logprob, field)
        if column is not None and len(column) != tokens:
            raise ContractError(
                f"logprob {logprob.sample_id}: {field} has {len(column)} values, the rollout has {tokens} response "
                "tokens"
            )


def _tokens(sample: Sample, field: str, needed_by: str) -> Tensor:
    """[R] of a column of the sample's logprobs."""
    assert sample.logprob is not None
    column: list[float] | None = getattr(sample.logprob, field)
    if column is None:
        raise ContractError(
            f"logprob {sample.logprob.sample_id}: {field} is missing but {needed_by}; run the logprob stage with the "
            "same settings"
        )
    return torch.tensor(column)
