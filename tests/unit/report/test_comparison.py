import pytest

from burnish.contracts.evaluation import Evaluation, PromptOutcome, Score
from burnish.report.comparison import compare, paired_change, verdict
from burnish.report.summary import headline


def evaluation(label: str, passed: list[int], task: str = "sums", samples: int = 8) -> Evaluation:
    outcomes = [
        PromptOutcome(prompt_id=f"p{index}", task=task, samples=samples, passed=count)
        for index, count in enumerate(passed)
    ]
    mean = sum(passed) / samples / len(passed)
    score = Score(k=1, task=None, prompts=len(passed), value=mean, low=mean - 0.1, high=mean + 0.1)
    return Evaluation(
        label=label, policy_version=0, temperature=1.0, samples=samples, scores=[score], outcomes=outcomes
    )


def test_a_policy_that_did_not_change_did_not_improve():
    before, after = evaluation("before", [0, 3, 8, 5]), evaluation("after", [0, 3, 8, 5])
    change = paired_change(before, after, 1)
    assert change is not None
    assert (change.mean, change.low, change.high, change.prompts) == (0.0, 0.0, 0.0, 4)
    assert not change.beyond_noise


def test_a_gain_on_every_prompt_is_beyond_noise_even_when_prompts_differ_widely():
    before, after = evaluation("before", [0, 2, 4, 6] * 5), evaluation("after", [2, 4, 6, 8] * 5)
    change = paired_change(before, after, 1)
    assert change is not None
    assert change.mean == pytest.approx(0.25)
    assert change.low == pytest.approx(0.25)
    assert "an improvement beyond noise" in headline(compare({"before": before, "after": after}))


def test_a_loss_is_called_a_loss():
    rows = compare({"before": evaluation("before", [8] * 9), "after": evaluation("after", [1] * 9)})
    assert "a loss beyond noise" in verdict(rows[0])


def test_one_prompt_up_and_one_down_is_noise():
    rows = compare({"before": evaluation("before", [8, 0, 4, 4]), "after": evaluation("after", [0, 8, 4, 5])})
    assert "within noise" in verdict(rows[0])


def test_prompts_are_matched_by_id_and_too_few_verdicts_leave_one_out():
    before = evaluation("before", [4, 4])
    after = evaluation("after", [8]).model_copy(
        update={
            "outcomes": [
                PromptOutcome(prompt_id="p1", task="sums", samples=8, passed=8),
                PromptOutcome(prompt_id="p0", task="sums", samples=3, passed=3),
                PromptOutcome(prompt_id="new", task="sums", samples=8, passed=8),
            ]
        }
    )
    pass_at_1, pass_at_8 = paired_change(before, after, 1), paired_change(before, after, 8)
    assert pass_at_1 is not None
    assert pass_at_8 is not None
    assert (pass_at_1.prompts, pass_at_8.prompts) == (2, 1)


def test_a_run_without_the_second_evaluation_has_no_change_to_report():
    rows = compare({"before": evaluation("before", [4, 4])})
    assert rows[0].change is None
    assert "not measured both before and after" in verdict(rows[0])
    assert headline(compare({})) == "There is no evaluation to compare."


def test_a_sole_task_is_not_listed_twice():
    found = evaluation("before", [4, 4])
    scores = [found.scores[0], found.scores[0].model_copy(update={"task": "sums"})]
    assert [row.task for row in compare({"before": found.model_copy(update={"scores": scores})})] == [None]
    scores.append(found.scores[0].model_copy(update={"task": "code"}))
    rows = compare({"before": found.model_copy(update={"scores": scores})})
    assert [row.task for row in rows] == [None, "code", "sums"]
