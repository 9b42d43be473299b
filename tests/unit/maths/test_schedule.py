import pytest

from burnish.maths.schedule import LR_SCALE_BOUNDS, learning_rate, next_lr_scale, scheduled


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


@pytest.mark.parametrize("schedule", ["constant", "kl_adaptive"])
def test_constant_stays_at_the_peak_after_warm_up(schedule):
    assert rates(schedule) == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_a_run_of_one_step_without_warm_up_uses_the_peak():
    assert rates("cosine", warmup_steps=0, total_steps=1)[0] == 1.0


def test_a_coefficient_goes_from_its_start_to_its_final_share():
    linear = [scheduled(step, 5, 0.02, "linear", 0.5) for step in range(6)]
    assert linear == pytest.approx([0.02, 0.0175, 0.015, 0.0125, 0.01, 0.01])
    assert scheduled(2, 5, 0.02, "cosine", 0.0) == pytest.approx(0.01)
    assert scheduled(4, 5, 0.02, "constant", 0.0) == 0.02
    assert scheduled(4, 5, 0.02, "adaptive", 0.0) == 0.02


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.5), (0.02, 1.0), (0.01, 1.0), (0.005, 1.0), (0.0049, 2.0), (0.0, 1.0), (None, 1.0)]
)
def test_the_scale_is_halved_above_twice_the_target_and_doubled_below_half_of_it(kl, expected):
    assert next_lr_scale(1.0, kl, target=0.01) == expected


def test_the_scale_stays_within_its_bounds():
    low, high = LR_SCALE_BOUNDS
    up = down = 1.0
    for _ in range(20):
        up, down = next_lr_scale(up, 1e-9, 0.01), next_lr_scale(down, 9.0, 0.01)
    assert (down, up) == (low, high)
