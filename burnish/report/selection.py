"""Which rollouts of a round a report keeps: the best and the worst of each group first, then the rest.

The choice depends on the samples alone, so the same run gives the same report.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from burnish.report.run import Sample


def select_samples(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """At most `limit` samples: every group's best and worst before any group's middle, groups taking turns.

    Kept samples come back grouped, best first inside a group.
    """
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.rollout.group_id].append(sample)
    # Groups with a spread of rewards show what the policy is taught; they take the first places.
    ranked = sorted((_best_first(group) for group in groups.values()), key=_spread, reverse=True)
    turns = zip_longest(*(_ends_first(group) for group in ranked))
    chosen = [sample for turn in turns for sample in turn if sample is not None][:limit]
    kept = {sample.rollout.sample_id for sample in chosen}
    return [sample for group in ranked for sample in group if sample.rollout.sample_id in kept]


def _best_first(group: list[Sample]) -> list[Sample]:
    return sorted(group, key=lambda sample: (-_known(sample), sample.rollout.sample_id))


def _ends_first(group: list[Sample]) -> list[Sample]:
    """Best, worst, second best, second worst, ..."""
    count = len(group)
    order = [index // 2 if index % 2 == 0 else count - 1 - index // 2 for index in range(count)]
    return [group[index] for index in order]


def _spread(group: list[Sample]) -> float:
    values = [sample.value for sample in group if sample.value is not None]
    return max(values) - min(values) if values else -1.0


def _known(sample: Sample) -> float:
    """A missing reward sorts below every real one."""
    return sample.value if sample.value is not None else float("-inf")
