"""Samples that are not trained on, and warnings about rounds in which something is wrong with most of them.

A filtered sample is no row of the batch: no loss, no denominator. It did happen, so its reward stays in its group's
mean and standard deviation; only `aborted` and `no_reward` have none to count.
"""

from collections.abc import Callable, Sequence
from statistics import quantiles

from burnish.contracts.algorithm import FilterConfig
from burnish.contracts.records import Rollout
from burnish.maths.filters import length_outliers, repeated_share
from burnish.stages.update_batch import Sample

Filter = Callable[[Sequence[Sample], FilterConfig], list[bool]]

_NEARLY_ALL = 0.9
# A limit this small is never worth a warning for being large.
_SMALL_LIMIT = 64


def aborted(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Sampling broke off. In no denominator, and its reward in no group's statistics."""
    return [sample.rollout.finish_reason == "abort" for sample in samples]


def no_reward(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Nothing to learn from. In no denominator and in no group's statistics: as if it had not been drawn."""
    return [sample.score is None for sample in samples]


def no_logprobs(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """The logprob stage left it out. In no denominator; its reward counts, unless KL has to be taken off it."""
    return [sample.logprob is None for sample in samples]


def no_tokens(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """loss_mask is 0 everywhere. In no denominator, as a fully masked row would be in none either."""
    return [sample.length == 0 for sample in samples]


def malformed(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """`filters.malformed: drop`. In no denominator; its reward counts in its group."""
    return [settings.malformed == "drop" and sample.malformed for sample in samples]


def zero_variance(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Whole groups whose rewards are equal, before the forward pass. In no denominator, so that the others' gradient
    does not shrink with the number of solved prompts (DAPO's dynamic sampling, without the sampling again).

    A malformed sample that is penalized has a signal of its own and stays.
    """
    if not settings.zero_variance:
        return [False] * len(samples)
    penalized = settings.malformed == "penalize"
    return [sample.no_signal and not (penalized and sample.malformed) for sample in samples]


def truncated(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Cut off by the length limit. In no denominator: the loss is that of the finished ones alone."""
    return [bool(settings.truncated) and sample.rollout.finish_reason == "length" for sample in samples]


def length(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Far longer than the round's others (`length_quantile`, `length_mad`). In no denominator."""
    return length_outliers([sample.length for sample in samples], settings.length_quantile, settings.length_mad)


def repetition(samples: Sequence[Sample], settings: FilterConfig) -> list[bool]:
    """Loops: too large a share of its n-grams occurred before. In no denominator."""
    limit = settings.repetition
    if limit is None:
        return [False] * len(samples)
    return [repeated_share(_generated(sample), settings.repetition_ngram) > limit for sample in samples]


# A sample is counted under the first that applies.
FILTERS: dict[str, Filter] = {
    filter.__name__: filter
    for filter in (
        aborted,
        no_reward,
        no_logprobs,
        no_tokens,
        malformed,
        zero_variance,
        truncated,
        length,
        repetition,
    )
}


def dropped_by(samples: Sequence[Sample], settings: FilterConfig) -> list[str | None]:
    """The first filter that leaves each sample out; None for a sample that is trained."""
    reasons: list[str | None] = [None] * len(samples)
    for name, applies in FILTERS.items():
        for row, flag in enumerate(applies(samples, settings)):
            if flag and reasons[row] is None:
                reasons[row] = name
    return reasons


def warnings(rollouts: Sequence[Rollout], negative_share: float | None, limit: int) -> list[str]:
    """What a person should know before blaming the algorithm.

    negative_share: of the trained samples; limit: rollout.max_new_tokens.
    """
    finished = [rollout for rollout in rollouts if rollout.finish_reason != "abort"]
    if not finished:
        return []
    found = []
    share = sum(rollout.finish_reason == "length" for rollout in finished) / len(finished)
    if share > _NEARLY_ALL:
        found.append(
            f"{share:.0%} of the responses were cut off: raise rollout.max_new_tokens={limit} or set "
            "reward.overlong_buffer"
        )
    lengths = [sum(rollout.loss_mask) for rollout in finished]
    longest = quantiles(lengths, n=100, method="inclusive")[98] if len(lengths) > 1 else lengths[0]
    if longest < limit / 4 and limit > _SMALL_LIMIT:
        found.append(
            f"99 % of the responses have at most {longest:.0f} tokens: rollout.max_new_tokens={limit} is far more than "
            "they need"
        )
    if negative_share is not None and negative_share > _NEARLY_ALL:
        found.append(
            f"{negative_share:.0%} of the trained samples have a negative advantage: easier prompts or update.positive "
            "make the rare successes count"
        )
    return found


def _generated(sample: Sample) -> list[int]:
    tokens = zip(sample.rollout.response_ids, sample.rollout.loss_mask, strict=True)
    return [token for token, trained in tokens if trained]
