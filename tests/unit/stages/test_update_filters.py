import pytest
from batch_inputs import records, rollout, update_config

from burnish.stages.update_filters import FILTERS, warnings
from burnish.stages.update_round import build_batch


def kept(inputs, **fields):
    """Names of the trained samples, and how many each filter left out."""
    batch, figures = build_batch(*inputs, update_config(preset="dr_grpo", **fields))
    dropped = {name: int(figures[f"dropped/{name}"]) for name in (*FILTERS, "negative")}
    assert figures["samples_trained"] == len(batch.rollouts)
    assert sum(dropped.values()) + len(batch.rollouts) == figures["samples"]
    return {row.sample_id for row in batch.rollouts}, {name: count for name, count in dropped.items() if count}


def test_nothing_is_left_out_unless_it_is_asked_for():
    rows = [rollout("a0"), rollout("a1", finish="length", tokens=[7] * 30), rollout("b0"), rollout("b1")]
    inputs = records([[0, 1], [1, 1]], rollouts=rows, flags={"a0": ["malformed"]})
    assert kept(inputs) == ({"a0", "a1", "b0", "b1"}, {})


def test_groups_of_equal_rewards_are_left_out_whole():
    assert kept(records([[0, 1], [1, 1], [0, 0]]), filters={"zero_variance": True}) == (
        {"a0", "a1"},
        {"zero_variance": 4},
    )


def test_a_penalized_malformed_sample_is_a_signal_in_a_group_of_equal_rewards():
    inputs = records([[0, 0, 0]], flags={"a1": ["malformed"]})
    filters = {"zero_variance": True, "malformed": "penalize"}
    assert kept(inputs, filters=filters) == ({"a1"}, {"zero_variance": 2})


def test_for_gdpo_a_group_has_a_signal_when_one_component_differs():
    components = {"a0": {"x": 1.0, "y": 0.0}, "a1": {"x": 0.0, "y": 1.0}, "b0": {"x": 1.0}, "b1": {"x": 1.0}}
    inputs = records([[1, 1], [1, 1]], components=components)
    filters = {"zero_variance": True}
    assert kept(inputs, advantage={"estimator": "gdpo"}, filters=filters) == ({"a0", "a1"}, {"zero_variance": 2})
    assert kept(inputs, filters=filters) == (set(), {"zero_variance": 4})


def test_truncated_samples_are_left_out():
    rows = [rollout("a0", finish="length"), rollout("a1")]
    assert kept(records([[0, 1]], rollouts=rows), filters={"truncated": True}) == ({"a1"}, {"truncated": 1})


def test_length_outliers_are_left_out_by_quantile_and_by_deviation():
    rows = [rollout(f"a{number}", length) for number, length in enumerate([10, 11, 12, 13, 60])]
    inputs = records([[0, 1, 0, 1, 0]], rollouts=rows)
    for limit in ({"length_quantile": 0.9}, {"length_mad": 5.0}):
        assert kept(inputs, filters=limit) == ({"a0", "a1", "a2", "a3"}, {"length": 1})
    assert kept(inputs, filters={"length_mad": 60.0})[1] == {}


def test_loops_are_left_out_and_only_generated_tokens_are_looked_at():
    rows = [
        rollout("a0", tokens=[1, 2, 3, 4, 5, 6]),
        rollout("a1", tokens=[1, 2, 1, 2, 1, 2, 1, 2]),
        rollout("a2", tokens=[1, 2, 1, 2, 1, 2, 1, 2], mask=[1, 1, 0, 0, 0, 0, 0, 0]),
    ]
    filters = {"repetition": 0.5, "repetition_ngram": 2}
    assert kept(records([[0, 1, 0]], rollouts=rows), filters=filters) == ({"a0", "a2"}, {"repetition": 1})


def test_malformed_samples_are_kept_dropped_or_given_a_fixed_advantage():
    inputs = records([[0, 1, 1]], flags={"a2": ["malformed"]})
    assert kept(inputs)[1] == {}
    assert kept(inputs, filters={"malformed": "drop"}) == ({"a0", "a1"}, {"malformed": 1})
    settings = update_config(preset="dr_grpo", filters={"malformed": "penalize", "malformed_advantage": -3.0})
    batch, _ = build_batch(*inputs, settings)
    assert batch.advantages[:, 0].tolist() == pytest.approx([-2 / 3, 1 / 3, -3.0])


@pytest.mark.parametrize("filters", [{"truncated": True}, {"malformed": "drop"}, {"length_quantile": 0.5}])
def test_what_a_filter_leaves_out_still_counts_in_its_group_s_mean(filters):
    rows = [rollout("a0", 3), rollout("a1", 3), rollout("a2", 9, finish="length")]
    inputs = records([[0, 1, 5]], rollouts=rows, flags={"a2": ["malformed"]})
    batch, _ = build_batch(*inputs, update_config(preset="dr_grpo", filters=filters))
    assert batch.advantages[:, 0].tolist() == [-2.0, -1.0]


def test_each_sample_is_counted_once_under_the_first_filter_that_applies():
    rows = [rollout("a0", finish="abort"), rollout("a1", finish="length"), rollout("a2", mask=[0, 0, 0])]
    inputs = records([[0, None, 1]], rollouts=rows, flags={"a0": ["malformed"]})
    filters = {"truncated": True, "malformed": "drop", "zero_variance": True}
    assert kept(inputs, filters=filters) == (set(), {"aborted": 1, "no_reward": 1, "no_tokens": 1})


def test_negative_samples_are_thinned_out_in_each_group_by_seed():
    inputs = records([[1, *[0] * 8], [1, 1, *[0] * 4]])
    settings = update_config(preset="dr_grpo", positive={"negative_keep": 0.25})
    batch, figures = build_batch(*inputs, settings, seed=3)
    names = [row.sample_id for row in batch.rollouts]
    assert [name[0] for name in names] == ["a"] * 3 + ["b"] * 3
    assert {"a0", "b0", "b1"} <= set(names)
    assert figures["dropped/negative"] == 9
    again, _ = build_batch(*(list(reversed(part)) for part in inputs), settings, seed=3)
    assert [row.sample_id for row in again.rollouts] == names
    choices = {
        tuple(row.sample_id for row in build_batch(*inputs, settings, seed=seed)[0].rollouts) for seed in range(8)
    }
    assert len(choices) > 1
    # Advantages are those of the whole group.
    assert batch.advantages[:, 0].tolist() == pytest.approx([8 / 9, -1 / 9, -1 / 9, 2 / 3, 2 / 3, -1 / 3])


def test_unlikely_tokens_of_negative_samples_leave_the_mask():
    inputs = records([[0, 1]], old={"a0": [-0.1, -9.0, -0.2], "a1": [-0.1, -9.0, -0.2]})
    batch, figures = build_batch(*inputs, update_config(preset="dr_grpo", positive={"negative_token_floor": 0.01}))
    assert batch.mask.tolist() == [[True, False, True], [True, True, True]]
    assert figures["tokens_dropped"] == 1


def test_a_round_cut_off_at_the_limit_is_warned_about():
    rows = [rollout(f"a{number}", finish="length") for number in range(20)]
    assert "100% of the responses were cut off" in warnings(rows, None, 3)[0]
    assert warnings([*rows[:18], rollout("b0"), rollout("b1")], None, 3) == []


def test_a_limit_far_beyond_the_responses_is_warned_about():
    rows = [rollout(f"a{number}", 10) for number in range(20)]
    assert "at most 10 tokens: rollout.max_new_tokens=100" in warnings(rows, None, 100)[0]
    assert warnings(rows, None, 39) == []
    assert warnings(rows, None, 64) == []
    assert warnings([], None, 100) == []


def test_mostly_negative_samples_are_warned_about():
    assert "95% of the trained samples have a negative advantage" in warnings([rollout("a0")], 0.95, 8)[0]
    assert warnings([rollout("a0")], 0.5, 8) == []
