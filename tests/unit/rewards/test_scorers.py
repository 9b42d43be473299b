import time

import pytest
from samples import prompt as make_prompt
from samples import rollout, scored

from burnish.contracts.config import RewardConfig, ScorerConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Execution
from burnish.rewards.exact import ends_with_answer
from burnish.rewards.extraction import extract_code
from burnish.rewards.format import well_formed_thinking
from burnish.rewards.gym import final_answer
from burnish.rewards.scorer import check_scorers, default_scorers


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("7", "7"), ("3 + 4 = 7", "7"), ("The answer is 7.", "7"), (" 7 \n", "7"), ("**7**", "7"), ("7<|im_end|>", "7"),
        ("3+4=7", "7"), ("It is 1,234.", "1234"), ("7.0", "7"), ("-3", "-3"), ("2 - 5 = -3", "-3"), ("07", "7"),
        ("5-2 is 3", "3"), ("First 9, no: 7", "7"), ("\\boxed{7}", "7"), ("$7$", "7"), ("(7)", "7"), ("0.50", "0.5"),
        ("The answer is Paris.", "paris"), ("Paris", "Paris"), ("I think:\nparis", "Paris"),
        ("So x = new  york!", "New York"),
        ("<answer>Paris</answer>", "Paris"),
    ],
)  # fmt: skip
def test_a_response_that_ends_with_the_answer_is_right(response, answer):
    assert ends_with_answer(response, answer)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("7 is the answer", "7"), ("7. The", "7"), ("7\nNow let us see", "7"), ("17", "7"), ("x7", "7"), ("1.7", "7"),
        ("3 + 4 = 7, so 3 + 5 = 8", "7"), ("", "7"), ("seven", "7"), ("5-3", "-3"), ("7%", "7"), ("7 apples", "7"),
        ("Paris is the capital", "Paris"), ("not Paris", "Paris"), ("Paris\nor London", "Paris"), ("", "Paris"),
        ("7 7 7 8", "7"), ("-7", "7"), ("2.7", "7"), ("1,7", "7"),
    ],
)  # fmt: skip
def test_anything_else_is_wrong(response, answer):
    assert not ends_with_answer(response, answer)


def test_exact_has_nothing_to_say_about_other_prompts():
    assert scored("exact", "7", {"kind": "exact", "answer": "7"}) == 1.0
    assert scored("exact", "8", {"kind": "exact", "answer": "7"}) == 0.0
    assert scored("exact", "7", {"kind": "math", "answer": "7"}) is None


def test_code_scores_executions_all_or_by_rate_and_a_sandbox_failure_is_missing():
    verifier = {"kind": "code", "tests": []}
    half = Execution("s", ["passed", "wrong"])
    assert scored("code", "", verifier, half) == 0.0
    assert scored("code", "", verifier, half, mode="rate") == 0.5
    assert scored("code", "", verifier, Execution("s", ["passed", "passed"])) == 1.0
    assert scored("code", "", verifier, Execution("s", ["passed", "internal"])) is None
    assert scored("code", "", verifier, None) is None
    assert scored("code", "", {"kind": "exact", "answer": "1"}, half) is None


def test_each_way_of_failing_has_the_score_that_the_configuration_gives_it():
    verifier, rewards = {"kind": "code", "tests": []}, {"compile_error": -0.5, "timeout": -0.25, "wrong": 0.1}
    half = Execution("s", ["passed", "wrong", "timeout", "memory"])
    assert scored("code", "", verifier, half, rewards=rewards) == -0.25
    assert scored("code", "", verifier, half, rewards=rewards, mode="rate") == pytest.approx((1 + 0.1 - 0.25) / 4)
    assert scored("code", "", verifier, Execution("s", ["compile_error"] * 2), rewards=rewards, mode="rate") == -0.5
    assert scored("code", "", verifier, Execution("s", ["passed"]), rewards=rewards) == 1.0
    assert scored("code", "", verifier, Execution("s", ["internal", "wrong"]), rewards=rewards) is None


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("<think>a</think>b", True), (" <think></think> b", True), ("<think>a</think> ", False), ("a", False),
        ("<think>a", False), ("a</think>b", False), ("<think><think>a</think>b", False),
        ("</think><think>a</think>b", False), ("x<think>a</think>b", False), ("<think>a</think>b</think>", False),
    ],
)  # fmt: skip
def test_thinking_must_open_and_close_once_and_lead_to_an_answer(text, fine):
    assert well_formed_thinking(text, "<think>", "</think>") is fine


def test_format_checks_the_ending():
    assert scored("format", "so it is. DONE \n", {}, ends_with="DONE") == 1.0
    assert scored("format", "DONE it is", {}, ends_with="DONE") == 0.0


def test_length_falls_between_target_and_limit_and_counts_generated_tokens_only():
    assert scored("length", "", {}, target=3, limit=5) == 1.0
    assert scored("length", "", {}, target=1, limit=5) == 0.5
    assert scored("length", "", {}, target=0, limit=3) == 0.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>a</answer> or <answer> b </answer>", "b"), ("3 + 4 = 7.", "7"), ("So\nThe answer is: 12\n\n", "12"),
        ("plain", "plain"), ("", ""),
    ],
)  # fmt: skip
def test_the_answer_for_reasoning_gym_is_the_tag_or_the_end_of_the_last_line(response, answer):
    assert final_answer(response) == answer


@pytest.mark.parametrize(
    ("scorers", "says"),
    [
        ([{"name": "exakt"}], "did you mean 'exact'"),
        ([{"name": "???"}], "known: exact, math"),
        ([{"name": "exact"}, {"name": "exact"}], "second 'exact'"),
        ([{"name": "exact", "params": {"x": 1}}], "params.x is not known"),
        ([{"name": "code", "params": {"mode": "some"}}], "params.mode is 'some'"),
        ([{"name": "code", "params": {"rewards": {"internal": 0.0}}}], "params.rewards.internal"),
        ([{"name": "code", "params": {"rewards": {"wrong": 1.0}}}], "params.rewards.wrong is 1.0"),
        ([{"name": "code", "params": {"mod": "all"}}], "did you mean 'mode'"),
        ([{"name": "format"}], "give at least one of regex, think and ends_with"),
        ([{"name": "format", "params": {"regex": "("}}], "regex is not valid"),
        ([{"name": "length", "params": {"target": 5, "limit": 5}}], "target 5 must be below limit 5"),
        ([{"name": "length"}], "params.target"),
    ],
)
def test_a_wrong_scorer_is_one_line_with_the_fix(scorers, says):
    with pytest.raises(ConfigError, match=says) as caught:
        check_scorers(RewardConfig(scorers=[ScorerConfig(**scorer) for scorer in scorers]))
    assert "\n" not in str(caught.value)


def test_without_scorers_each_kind_of_verifier_has_its_own():
    assert [scorer.name for scorer in default_scorers(["code", "exact"])] == ["exact", "code"]
    with pytest.raises(ConfigError, match="did you mean 'exact'"):
        default_scorers(["exat"])


def test_the_helpers_make_valid_rows():
    rollout("x").check()
    make_prompt(kind="exact").check()


@pytest.mark.parametrize(
    "filler", [".", "!", " ", "1", "1,", "=", "answer is ", "<answer>", "-1", "\n", "```", "``` ", "a"]
)
def test_long_degenerate_responses_are_judged_in_no_time(filler):
    text = filler * (200_000 // len(filler)) + "x"
    started = time.monotonic()
    for answer in ("7", "Paris"):
        assert not ends_with_answer(text, answer)
    final_answer(text)
    well_formed_thinking(text, "<think>", "</think>")
    extract_code(text, "f")
    assert time.monotonic() - started < 5
