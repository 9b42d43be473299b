"""Published algorithms as data: what each preset name means for the empty fields of `update`.

A preset is three orthogonal choices (advantage, ratio and clipping, aggregation) and the extras its authors use.
docs/algorithms.md says when to use which.
"""

from typing import Any

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.section import Section

# What a preset does not mention.
_BASE: dict[str, dict[str, Any]] = {
    "advantage": {"estimator": "group", "std": "group", "gae_lambda": 1.0, "value_lambda": 1.0, "whiten": True}
    | {"length_adaptive": 0.0},
    "loss": {"surrogate": "clip", "ratio": "token", "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 0.0}
    | {"aggregation": "token-mean"},
    "kl": {"coef": 0.0, "place": "loss", "estimator": "k3"},
    "correction": {"mode": "token_tis"},
    "filters": {"zero_variance": False, "truncated": False},
    "positive": {"nll_weight": 0.0},
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    # Shao et al. 2024 (arXiv:2402.03300): group z-score, symmetric clip, a mean over each answer, then over
    # answers; k3 in the loss.
    "grpo": {"loss": {"aggregation": "seq-mean-token-mean"}, "kl": {"coef": 0.01}},
    # Liu et al. 2025 (arXiv:2503.20783): neither the standard deviation nor the answer's length divides; the token
    # sum is divided by a constant, the completion limit.
    "dr_grpo": {"advantage": {"std": "none"}, "loss": {"aggregation": "seq-mean-token-sum-norm"}},
    # Yu et al. 2025 (arXiv:2503.14476): clip-higher, one mean over all tokens, no KL, groups without a signal left
    # out. The overlong penalty is `reward.overlong_buffer`.
    "dapo": {"loss": {"clip_high": 0.28}, "filters": {"zero_variance": True, "truncated": True}},
    # Ahmadian et al. 2024 (arXiv:2402.14740): the others' mean as baseline, the sequence as the action, KL in the
    # reward.
    "rloo": {
        "advantage": {"estimator": "rloo"},
        "loss": {"surrogate": "reinforce", "aggregation": "seq-mean-token-sum"},
        "kl": {"coef": 0.05, "place": "reward", "estimator": "k1"},
    },
    # Williams 1992: centred reward times the score function, no ratio.
    "reinforce": {"advantage": {"std": "none"}, "loss": {"surrogate": "reinforce"}},
    # Hu 2025 (arXiv:2501.03262): discounted token returns with KL in the reward, whitened over the whole batch.
    "reinforce_pp": {
        "advantage": {"estimator": "reinforce_pp"},
        "kl": {"coef": 0.01, "place": "reward", "estimator": "k1"},
    },
    # The same paper's variant for verifiable rewards: centred in the group, whitened over the batch, k2 in the loss.
    "reinforce_pp_baseline": {
        "advantage": {"estimator": "reinforce_pp_baseline"},
        "kl": {"coef": 0.01, "estimator": "k2"},
    },
    # Hao et al. 2025 (arXiv:2505.23585): exactly on-policy, the baseline of least variance, no clip, no KL.
    "opo": {"advantage": {"estimator": "opo"}, "loss": {"surrogate": "reinforce"}},
    # Maximum-likelihood RL (2026): the centred reward over the group's mean, as the gradient of log success has it.
    "maxrl": {"advantage": {"estimator": "maxrl"}},
    # Group reward-decoupled normalisation (2026): each component normalised first, so that none is lost in the sum.
    "gdpo": {"advantage": {"estimator": "gdpo"}, "kl": {"coef": 0.01}},
    # Zheng et al. 2025 (arXiv:2507.18071): the ratio is the sequence's, with its own, much smaller clip range.
    "gspo": {
        "loss": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "seq-mean-token-mean"},
        "correction": {"mode": "none"},
    },
    # MiniMax 2025 (arXiv:2506.13585): the clipped ratio is a constant weight, so every token keeps a gradient.
    "cispo": {"loss": {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0}},
    # Soft adaptive policy optimization (Qwen, 2025, arXiv:2511.20347): a smooth gate instead of a clip.
    "sapo": {"loss": {"surrogate": "sapo", "aggregation": "seq-mean-token-mean"}},
    # Geometric-mean policy optimization (2025, arXiv:2507.20673): token ratios clipped in log space, then averaged.
    "gmpo": {
        "loss": {"surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4, "aggregation": "seq-mean-token-mean"},
    },
    # Trust region by total variation: a token stops when its probability has moved too far (INTELLECT's prime-rl).
    "dppo_tv": {"loss": {"surrogate": "dppo_tv"}},
    # AReaL 2025 (arXiv:2505.24298): the clip holds the policy near the recomputed one, a separate weight corrects for
    # the sampler; tokens whose weight exceeds the cap are removed, the denominator stays.
    "decoupled_ppo": {
        "advantage": {"std": "batch"},
        "correction": {"mode": "token_mask", "low": 0.0, "high": 5.0},
    },
    # Schulman et al. 2017 (arXiv:1707.06347) with a critic; KL in the reward as in Ouyang et al. 2022.
    "ppo": {
        "advantage": {"estimator": "gae", "gae_lambda": 0.95},
        "kl": {"coef": 0.05, "place": "reward", "estimator": "k1"},
    },
    # Yue et al. 2025 (arXiv:2504.05118): plain returns for the critic, a length-adaptive lambda for the policy,
    # clip-higher, likelihood of what succeeded.
    "vapo": {
        "advantage": {"estimator": "gae", "length_adaptive": 0.05},
        "loss": {"clip_high": 0.28},
        "positive": {"nll_weight": 0.1},
    },
}


def preset_fields(name: str) -> dict[str, dict[str, Any]]:
    """What preset `name` puts into the empty fields, by section of `update`."""
    own = PRESETS[name]
    return {section: values | own.get(section, {}) for section, values in _BASE.items()}


def resolve_preset(update: UpdateConfig) -> UpdateConfig:
    """`update` with every empty field filled from its preset; what the user set stays."""
    sections: dict[str, Section] = {}
    for name, values in preset_fields(update.preset).items():
        section: Section = getattr(update, name)
        empty = {field: value for field, value in values.items() if getattr(section, field) is None}
        sections[name] = section.model_copy(update=empty)
    return update.model_copy(update=sections)
