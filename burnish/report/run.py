"""What a report is made of: one run's settings, records, manifests, evaluations and a choice of its rollouts.

Everything may be missing: a report is written after failures too, from whatever is there.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.evaluation import Evaluation
from burnish.contracts.records import Execution, Logprob, Reward, Rollout
from burnish.report.verdicts import Verdicts, read_verdicts


@dataclass(frozen=True)
class Sample:
    """One rollout and what the other stages said about it; None: they said nothing."""

    rollout: Rollout
    reward: Reward | None = None
    execution: Execution | None = None
    logprob: Logprob | None = None

    @property
    def value(self) -> float | None:
        """The fused reward."""
        return self.reward.reward if self.reward else None


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SampleStats:
    """Figures over all samples of a round, of which the report keeps only some."""

    samples: int
    reward: Estimate | None
    """Over groups: samples of one prompt are not independent."""
    task_reward: dict[str, float]
    response_tokens: Estimate | None
    """Mean over samples; the ends are the 10 % and 90 % quantiles."""
    truncated: float | None
    length_reward: float | None = None
    """Correlation of length and reward inside groups."""


@dataclass(frozen=True)
class TokenDispute:
    """A token that sampler and trainer give different probabilities."""

    rollout: Rollout
    position: int
    """Index into its response_ids."""
    sampler: float
    """Logprob, as is the trainer's."""
    trainer: float


@dataclass(frozen=True)
class SampleSet:
    """The rollouts of a round or of an evaluation."""

    title: str
    """`round 3`, `evaluate - after`."""
    round: int | None
    stats: SampleStats
    shown: list[Sample]
    disputes: Sequence[TokenDispute] = ()
    """Where sampler and trainer disagree most, the worst first."""


@dataclass(frozen=True)
class RunView:
    """All a report shows."""

    run_id: str
    config: RunConfig
    records: list[StageRecord]
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    """Of the outputs, by digest."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """By label."""
    sample_sets: Sequence[SampleSet] = ()
    token_texts: Mapping[int, bytes] | None = None
    """UTF-8 bytes of each token id; None when the tokenizer could not be read."""
    notes: Sequence[str] = ()
    """What could not be read, one line each."""

    @property
    def verdicts(self) -> Verdicts:
        return read_verdicts(self.records, self.manifests)


def join_samples(
    rollouts: Sequence[Rollout],
    rewards: Sequence[Reward] = (),
    executions: Sequence[Execution] = (),
    logprobs: Sequence[Logprob] = (),
) -> list[Sample]:
    """Samples joined by sample_id, in the order of the rollouts."""
    reward = {row.sample_id: row for row in rewards}
    execution = {row.sample_id: row for row in executions}
    logprob = {row.sample_id: row for row in logprobs}
    return [
        Sample(row, reward.get(row.sample_id), execution.get(row.sample_id), logprob.get(row.sample_id))
        for row in rollouts
    ]


def token_disputes(metadata: Mapping[str, Any], samples: Sequence[Sample]) -> list[TokenDispute]:
    """The worst tokens that the metadata of a round's logprobs name, found in `samples`."""
    rollouts = {sample.rollout.sample_id: sample.rollout for sample in samples}
    return [
        TokenDispute(rollouts[found["sample_id"]], found["position"], found["sampler"], found["trainer"])
        for found in metadata.get("worst_tokens", ())
        if found["sample_id"] in rollouts
    ]


def sample_stats(samples: Sequence[Sample]) -> SampleStats:
    """Figures over `samples`; samples without a reward do not enter the reward figures."""
    groups: dict[str, list[float]] = defaultdict(list)
    tasks: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.value is not None:
            groups[sample.rollout.group_id].append(sample.value)
            tasks[sample.rollout.task].append(sample.value)
    lengths = sorted(len(sample.rollout.response_ids) for sample in samples)
    truncated = [sample.rollout.finish_reason == "length" for sample in samples]
    return SampleStats(
        samples=len(samples),
        reward=_clustered_mean(list(groups.values())),
        task_reward={task: statistics.fmean(values) for task, values in sorted(tasks.items())},
        response_tokens=_spread(lengths),
        truncated=sum(truncated) / len(truncated) if truncated else None,
        length_reward=_length_reward(samples),
    )


def _length_reward(samples: Sequence[Sample]) -> float | None:
    """Pearson correlation after every group's own means are taken off; None without a spread in both."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        if sample.value is not None:
            groups[sample.rollout.group_id].append((float(len(sample.rollout.response_ids)), sample.value))
    lengths: list[float] = []
    rewards: list[float] = []
    for group in groups.values():
        for values, all_values in zip(zip(*group, strict=True), (lengths, rewards), strict=True):
            mean = statistics.fmean(values)
            all_values.extend(value - mean for value in values)
    if not any(abs(value) > 1e-9 for value in lengths) or not any(abs(value) > 1e-9 for value in rewards):
        return None
    return statistics.correlation(lengths, rewards)


def _clustered_mean(groups: list[list[float]]) -> Estimate | None:
    """Mean over all values; normal 95 % interval from the spread between groups."""
    values = [value for group in groups for value in group]
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(groups) < 2:
        return Estimate(mean, mean, mean)
    half = 1.96 * statistics.stdev(statistics.fmean(group) for group in groups) / math.sqrt(len(groups))
    return Estimate(mean, mean - half, mean + half)


def _spread(ordered: list[int]) -> Estimate | None:
    if not ordered:
        return None
    last = len(ordered) - 1
    return Estimate(statistics.fmean(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])
