from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.records import Reward, Rollout
from burnish.report.run import Sample, sample_stats
from burnish.report.selection import select_samples


def sample(group: int, index: int, value: float | None) -> Sample:
    name = f"g{group}-s{index}"
    rollout = Rollout(
        name, name, 0, f"g{group}", f"p{group}", "sums", 0, [1], [2], [1], [-0.1], "stop", 1.0, 1.0, 0, 0, "processed",
        "p", "r",
    )  # fmt: skip
    return Sample(rollout, Reward(name, {}, value))


def ids(samples: list[Sample]) -> list[str]:
    return [found.rollout.sample_id for found in samples]


def test_the_best_and_the_worst_of_every_group_come_before_the_middle_of_any():
    samples = [sample(group, index, index / 10) for group in range(3) for index in range(5)]
    kept = select_samples(samples, 6)
    assert sorted(ids(kept)) == ["g0-s0", "g0-s4", "g1-s0", "g1-s4", "g2-s0", "g2-s4"]


def test_groups_whose_rewards_differ_come_first():
    samples = [sample(0, 0, 1.0), sample(0, 1, 1.0), sample(1, 0, 0.0), sample(1, 1, 1.0)]
    assert ids(select_samples(samples, 2)) == ["g1-s1", "g0-s0"]
    assert ids(select_samples(samples, 4)) == ["g1-s1", "g1-s0", "g0-s0", "g0-s1"]


def test_a_missing_reward_sorts_below_a_negative_one():
    samples = [sample(0, 0, None), sample(0, 1, -1.0), sample(0, 2, 1.0)]
    assert ids(select_samples(samples, 3)) == ["g0-s2", "g0-s1", "g0-s0"]


@given(st.lists(st.lists(st.none() | st.floats(-1, 1), min_size=1, max_size=5), max_size=6), st.integers(0, 40))
def test_at_most_the_limit_is_kept_and_no_sample_twice(groups, limit):
    samples = [sample(g, i, value) for g, group in enumerate(groups) for i, value in enumerate(group)]
    kept = ids(select_samples(samples, limit))
    assert len(kept) == min(limit, len(samples))
    assert len(set(kept)) == len(kept)
    assert kept == ids(select_samples(samples, limit))


def test_samples_without_a_reward_do_not_enter_the_mean():
    stats = sample_stats([sample(0, 0, 1.0), sample(0, 1, None), sample(1, 0, 0.0)])
    assert stats.samples == 3
    assert stats.reward is not None
    assert stats.reward.mean == 0.5
    assert stats.reward.low < 0.5 < stats.reward.high
    assert stats.task_reward == {"sums": 0.5}
    assert sample_stats([sample(0, 0, None)]).reward is None
