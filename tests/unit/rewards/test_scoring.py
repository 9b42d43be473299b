import pytest
from samples import prompt, rollout

from burnish.contracts.config import RewardConfig, ScorerConfig
from burnish.contracts.errors import ContractError
from burnish.contracts.execution import ExecuteConfig
from burnish.contracts.records import Execution, Reward
from burnish.rewards import execution
from burnish.rewards.execution import execute_rollouts
from burnish.rewards.score import score, solved
from sandbox.limits import Limits
from sandbox.verdicts import Result

PROMPTS = {
    "sum": prompt("sum", kind="exact", answer="7"),
    "code": prompt(
        "code", kind="code", entry_point="f", tests=[{"args": [1], "expected": 1}, {"expected": 2, "args": [2]}]
    ),
    "demo": prompt("demo", split="sft"),
}


def rewards(rollouts, executions=None, **config):
    return list(score(rollouts, executions or {}, PROMPTS, RewardConfig(**config), max_new_tokens=8))


def test_each_prompt_is_scored_by_what_fits_its_verifier():
    rows = rewards(
        [rollout("7", "a", "sum"), rollout("8", "b", "sum"), rollout("x", "c", "code"), rollout("x", "d", "code")],
        {"c": Execution("c", ["passed", "passed"])},
    )
    assert [row.sample_id for row in rows] == ["a", "b", "c", "d"]
    assert [row.reward for row in rows] == [1.0, 0.0, 1.0, None]
    assert rows[0].components == {"exact": 1.0, "code": None}
    assert [solved(row) for row in rows] == [True, False, True, None]


def test_truncated_and_aborted_samples_are_marked_and_an_abort_has_no_reward():
    cut, stopped = rewards([rollout("7", "a", "sum", finish="length"), rollout("7", "b", "sum", finish="abort")])
    assert (cut.reward, cut.flags) == (1.0, ["truncated"])
    assert (stopped.reward, stopped.flags) == (None, ["aborted"])


def test_the_overlong_penalty_is_a_component_and_part_of_the_reward():
    short, long = rewards([rollout("7", "a", "sum", tokens=4), rollout("7", "b", "sum", tokens=7)], overlong_buffer=4)
    assert (short.components["overlong"], short.reward) == (0.0, 1.0)
    assert (long.components["overlong"], long.reward) == (-0.75, 0.25)


def test_malformed_thinking_is_marked_and_gates():
    scorers = [
        ScorerConfig(name="exact"),
        ScorerConfig(name="format", params={"think": ["<t>", "</t>"]}, weight=0, gate=True),
    ]
    good, bad = rewards([rollout("<t>a</t>7", "a", "sum"), rollout("7", "b", "sum")], scorers=scorers)
    assert (good.reward, good.flags) == (1.0, [])
    assert (bad.reward, bad.flags) == (0.0, ["malformed"])


def test_a_rollout_without_its_prompt_is_a_broken_contract():
    with pytest.raises(ContractError, match="prompt nope is not among the prompts"):
        rewards([rollout("7", "a", "nope")])
    with pytest.raises(ContractError, match="prompt nope is not among the prompts"):
        list(execute_rollouts([rollout("7", "a", "nope")], PROMPTS, ExecuteConfig()))


def test_only_code_is_executed_and_every_sample_gets_its_own_verdicts():
    good = "```python\ndef f(x):\n    return x\n```"
    rollouts = [rollout(good if n % 2 else "def f(x): return 1", f"s{n}", "code") for n in range(6)]
    rollouts.append(rollout("7", "no-code", "sum"))
    found = {row.sample_id: row for row in execute_rollouts(rollouts, PROMPTS, ExecuteConfig(workers=2))}
    assert set(found) == {f"s{n}" for n in range(6)}
    for number in range(6):
        assert found[f"s{number}"].verdicts == (["passed", "passed"] if number % 2 else ["passed", "wrong"])
        found[f"s{number}"].check()


def test_stopping_early_ends_the_sandboxes():
    import os

    rollouts = [rollout("def f(x): return x", f"s{n}", "code") for n in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    stream = execute_rollouts(rollouts, PROMPTS, ExecuteConfig(workers=2))
    next(stream)
    stream.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_tests_that_cannot_be_read_are_a_broken_contract():
    broken = {"code": prompt("code", kind="code", tests=[])}
    with pytest.raises(ContractError, match="tests must be a list"):
        list(execute_rollouts([rollout("x", "a", "code")], broken, ExecuteConfig()))


def test_solved_asks_the_verifiers_alone():
    assert solved(Reward("a", {"format": 0.0, "exact": 1.0}, 0.0)) is True
    assert solved(Reward("a", {"format": 1.0, "code": 0.5}, 1.0)) is False
    assert solved(Reward("a", {"format": 1.0}, 1.0)) is None


def test_the_settings_are_the_limits_of_every_job(monkeypatch):
    seen = []

    class Recording:
        capacity = 4

        def submit(self, job):
            seen.append(job)

        def collect(self):
            return [(job.job_id, Result(("passed",), ("",), "", "", 0.0, False)) for job in seen]

        def close(self):
            pass

    monkeypatch.setattr(execution, "open_backend", lambda config: Recording())
    settings = ExecuteConfig(timeout_s=1, memory_mb=64, output_kb=2, disk_mb=3, processes=5, compile_s=7)
    rows = list(execute_rollouts([rollout("x", "a", "code")], PROMPTS, settings))
    assert [row.verdicts for row in rows] == [["passed"]]
    expected = Limits(wall_s=1, memory_mb=64, output_kb=2, disk_mb=3, processes=5, compile_s=7)
    assert [job.limits for job in seen] == [expected]
