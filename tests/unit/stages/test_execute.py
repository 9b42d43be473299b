import pytest
from light_stage import run_light
from reward_inputs import prompt, rollout

from burnish.contracts.errors import ContractError
from burnish.contracts.parquet import read_records
from burnish.contracts.records import Execution

CODE = prompt("code", kind="code", entry_point="f", tests=[{"args": [1], "expected": 1}, {"args": [2], "expected": 2}])
SUM = prompt("sum", kind="exact", answer="7")


def test_code_is_run_and_counted_by_verdict(tmp_path):
    rollouts = [
        rollout("def f(x): return x", "b", "code"),
        rollout("def f(x): return 1", "a", "code"),
        rollout("def f(x): return 1 / 0", "c", "code"),
        rollout("7", "d", "sum"),
    ]
    result, context = run_light("execute", tmp_path, {}, {"rollouts": rollouts, "prompts": [CODE, SUM]})
    rows = read_records(context.output_dir("executions") / "executions.parquet", Execution)
    assert [(row.sample_id, row.verdicts) for row in rows] == [
        ("b", ["passed", "passed"]),
        ("a", ["passed", "wrong"]),
        ("c", ["runtime_error", "runtime_error"]),
    ]
    assert "ZeroDivisionError" in rows[2].stderr_head
    assert result.counts == {"executions": {"rows": 3}}
    assert result.metrics["executions"] == 3.0
    assert result.metrics["degraded"] == 0.0
    assert {name: value for name, value in result.metrics.items() if name.startswith("verdict/")} == {
        "verdict/passed": 3,
        "verdict/wrong": 1,
        "verdict/runtime_error": 2,
    }
    assert 0 < result.metrics["seconds/mean"] <= result.metrics["seconds/max"]


def test_without_code_to_run_the_file_is_empty_and_nothing_is_measured(tmp_path):
    result, context = run_light("execute", tmp_path, {}, {"rollouts": [rollout("7", "d", "sum")], "prompts": [SUM]})
    assert read_records(context.output_dir("executions") / "executions.parquet", Execution) == []
    assert result.metrics == {"executions": 0.0, "degraded": 0.0, "seconds/mean": None, "seconds/max": None}


def test_limits_come_from_the_configuration(tmp_path):
    rollouts = [rollout("def f(x):\n    while True: pass", "a", "code")]
    config = {"execute": {"timeout_s": 0.5}}
    result, _ = run_light("execute", tmp_path, config, {"rollouts": rollouts, "prompts": [CODE]})
    assert result.metrics["verdict/timeout"] == 2.0
    assert result.metrics["seconds/max"] < 5


def test_a_rollout_of_an_unknown_prompt_is_a_broken_contract(tmp_path):
    with pytest.raises(ContractError, match="prompt other is not among the prompts"):
        run_light("execute", tmp_path, {}, {"rollouts": [rollout("x", "a", "other")], "prompts": [CODE]})
