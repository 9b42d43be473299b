"""The learning rate as a pure function of the step, so that a resumed run has nothing to restore.

Steps count from 0 over the whole run.
"""

import math
from typing import Literal

Schedule = Literal["constant", "cosine", "linear"]


def learning_rate(
    step: int, *, total_steps: int, peak: float, warmup_steps: int, schedule: Schedule, final_ratio: float
) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Warm-up rises linearly and reaches `peak` at step `warmup_steps - 1`; the decay reaches `peak * final_ratio` at
    the last step and stays there beyond it. Cosine source: Loshchilov & Hutter 2017, "SGDR" (arXiv:1608.03983).
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1), 1.0)
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (final_ratio + (1.0 - final_ratio) * left)
