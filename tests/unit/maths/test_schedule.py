import pytest

from burnish.maths.schedule import learning_rate


def rates(schedule, warmup_steps=2, total_steps=6):
    return [
        learning_rate(
            step,
            total_steps=total_steps,
            peak=1.0,
            warmup_steps=warmup_steps,
            schedule=schedule,
            final_ratio=0.1,
        )
        for step in range(total_steps + 1)
    ]


def test_linear_rises_to_the_peak_and_ends_at_the_final_ratio():
    assert rates("linear") == pytest.approx([0.5, 1.0, 1.0, 0.7, 0.4, 0.1, 0.1])


def test_cosine_passes_the_middle_and_ends_at_the_final_ratio():
    assert rates("cosine", warmup_steps=0, total_steps=3) == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_constant_stays_at_the_peak_after_warm_up():
    assert rates("constant") == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_a_run_of_one_step_without_warm_up_uses_the_peak():
    assert rates("cosine", warmup_steps=0, total_steps=1)[0] == 1.0
