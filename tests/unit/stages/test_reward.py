import pytest
from light_stage import run_light
from reward_inputs import prompt, rollout

from burnish.contracts.parquet import read_records
from burnish.contracts.records import Execution, Reward
from burnish.stages.reward import reward_metrics

PROMPTS = [
    prompt("sum", kind="exact", answer="7"),
    prompt("code", kind="code", entry_point="f", tests=[{"expected": 1}]),
]


def run(tmp_path, rollouts, executions, **config):
    return run_light("reward", tmp_path, config, {"rollouts": rollouts, "executions": executions, "prompts": PROMPTS})


def test_rewards_are_written_in_the_order_of_the_rollouts_and_summed_up(tmp_path):
    rollouts = [
        rollout("7", "a", "sum", "g1"),
        rollout("8", "b", "sum", "g1", "length"),
        rollout("7", "c", "sum", "g2"),
        rollout("7", "d", "sum", "g2"),
        rollout("x", "e", "code", "g3"),
        rollout("x", "f", "code", "g4"),
    ]
    result, context = run(tmp_path, rollouts, [Execution("e", ["wrong"])])
    rows = read_records(context.output_dir("rewards") / "rewards.parquet", Reward)
    assert [(row.sample_id, row.reward) for row in rows] == [
        ("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 1.0), ("e", 0.0), ("f", None),
    ]  # fmt: skip
    assert result.counts == {"rewards": {"rows": 6}}
    assert result.metrics == pytest.approx(
        {
            "reward/mean": 0.6,
            "reward/std": 0.24**0.5,
            "reward/missing": 1.0,
            "reward/task/code": 0.0,
            "reward/task/sum": 0.75,
            "reward/component/code": 0.0,
            "reward/component/exact": 0.75,
            "flag/truncated": 1.0,
            "solved/mean": 0.6,
            "groups/all_solved": 1 / 3,
            "groups/none_solved": 1 / 3,
            "groups/some_solved": 1 / 3,
        }
    )


def test_where_nothing_is_measured_the_metric_is_missing_not_zero():
    metrics = reward_metrics([rollout("x", "a", "sum")], [Reward("a", {"exact": None}, None, ["aborted"])])
    assert metrics["reward/mean"] is None
    assert metrics["reward/std"] is None
    assert metrics["reward/component/exact"] is None
    assert metrics["groups/all_solved"] is None
    assert metrics["reward/missing"] == 1.0
    assert metrics["flag/aborted"] == 1.0
    assert "reward/task/sum" not in metrics


def test_the_overlong_penalty_uses_the_rollout_limit(tmp_path):
    config = {"rollout": {"max_new_tokens": 4}, "reward": {"overlong_buffer": 4}}
    _, context = run(tmp_path, [rollout("7", "a", "sum")], [], **config)
    (row,) = read_records(context.output_dir("rewards") / "rewards.parquet", Reward)
    assert (row.components["overlong"], row.reward) == (-0.5, 0.5)
