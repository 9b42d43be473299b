"""Published algorithms as data: what each preset name means for the fields of `update`.

A preset is three orthogonal choices (advantage, ratio clipping, aggregation) and the filters its authors use.
"""

from typing import Any

from burnish.contracts.config import UpdateConfig

PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024 (arXiv:2402.03300): group z-score, symmetric clip, a mean over each answer, then over
    # answers; k3 in the loss.
    "grpo": {
        "advantage_std": "group",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "seq-mean-token-mean",
        "kl_coef": 0.01,
        "drop_zero_variance": False,
        "mask_truncated": False,
    },
    # Yu et al. 2025 (arXiv:2503.14476): clip-higher, one mean over all tokens, no KL, groups without a signal
    # left out. The overlong penalty is `reward.overlong_buffer`.
    "dapo": {
        "advantage_std": "group",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "aggregation": "token-mean",
        "kl_coef": 0.0,
        "drop_zero_variance": True,
        "mask_truncated": True,
    },
    # Liu et al. 2025 (arXiv:2503.20783): neither the standard deviation nor the answer's length divides;
    # the token sum is divided by a constant, the completion limit.
    "dr_grpo": {
        "advantage_std": "none",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "seq-mean-token-sum-norm",
        "kl_coef": 0.0,
        "drop_zero_variance": False,
        "mask_truncated": False,
    },
}


def resolve_preset(update: UpdateConfig) -> UpdateConfig:
    """`update` with every empty field filled from its preset; what the user set stays."""
    filled = {field: value for field, value in PRESETS[update.preset].items() if getattr(update, field) is None}
    return update.model_copy(update=filled)
