"""Learning rate and coefficients as pure functions of the step, so that a resumed run has nothing to restore.

Steps count from 0 over the whole run. What follows a measurement instead is one number to carry: `next_lr_scale`.
"""

import math
from typing import Literal

# Schedules that follow a measurement (kl_adaptive, adaptive) are constant here; their scale or controller comes on top.
Schedule = Literal["constant", "linear", "cosine", "kl_adaptive", "adaptive"]

# Lowest and highest factor on the configured learning rate.
LR_SCALE_BOUNDS = (1 / 64, 4.0)


def scheduled(step: int, total_steps: int, start: float, schedule: Schedule, final_ratio: float) -> float:
    """Value at `step` (from 0) of `total_steps`: `start` at the first, start * final_ratio at the last and beyond.

    Cosine source: Loshchilov & Hutter 2017, "SGDR" (arXiv:1608.03983).
    """
    if schedule not in ("linear", "cosine"):
        return start
    progress = min(step / max(total_steps - 1, 1), 1.0)
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return start * (final_ratio + (1.0 - final_ratio) * left)


def learning_rate(
    step: int, *, total_steps: int, peak: float, warmup_steps: int, schedule: Schedule, final_ratio: float
) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Warm-up rises linearly and reaches `peak` at step `warmup_steps - 1`; then `scheduled`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return scheduled(step - warmup_steps, total_steps - warmup_steps, peak, schedule, final_ratio)


def next_lr_scale(scale: float, kl: float | None, target: float) -> float:
    """Factor on the learning rate after a round that moved the policy by `kl` nats a token.

    Halved above 2 * target, doubled below target / 2, within LR_SCALE_BOUNDS; unchanged where nothing was measured or
    nothing moved: a round without a signal says nothing about the step size. As in adaptive PPO (arXiv:1707.06347,
    section 4).
    """
    if kl is None or kl == 0:
        return scale
    factor = 0.5 if kl > 2 * target else 2.0 if kl < target / 2 else 1.0
    low, high = LR_SCALE_BOUNDS
    return min(max(scale * factor, low), high)
