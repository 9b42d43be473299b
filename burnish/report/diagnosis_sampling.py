"""Diagnosis of sampling: the length limit, and how far the sampler lies from the trainer."""

import math

from burnish.report.figures import Figures
from burnish.report.symptom import Rule, Symptom

# A limit this small is not worth a word for being large.
_SMALL_LIMIT = 64
_MOSTLY_RIGHT = 0.8


def length_limit_too_small(figures: Figures) -> Symptom | None:
    cut = figures.late("rollout", "truncated_share")
    # Where nearly all is right, what is cut off comes after the answer.
    if cut is None or cut < 0.2 or (figures.solved or 0.0) >= _MOSTLY_RIGHT:
        return None
    limit = figures.config.rollout.max_new_tokens
    solved = "" if figures.solved is None else f"; {figures.solved:.0%} of the answers are right"
    return Symptom(
        "Responses are cut off before they end, and a cut answer is seldom right.",
        f"{cut:.0%} of the late responses hit the limit of {limit} tokens{solved}",
        f"rollout.max_new_tokens={2 * limit}, or reward.overlong_buffer={max(1, limit // 4)} to teach brevity; "
        "update.filters.truncated=true keeps cut answers out of the loss",
    )


def length_limit_too_large(figures: Figures) -> Symptom | None:
    limit, longest = figures.config.rollout.max_new_tokens, figures.by_round("rollout", "response_length_max")
    if not longest or limit <= _SMALL_LIMIT or max(longest) >= limit / 4:
        return None
    wanted = 8 * math.ceil(max(longest) * 1.5 / 8)
    return Symptom(
        "The length limit is far above what the task needs: one rambling answer can cost more than a round.",
        f"the longest response has {max(longest):.0f} tokens, the limit is {limit}",
        f"rollout.max_new_tokens={wanted}",
    )


def sampler_trainer_mismatch(figures: Figures) -> Symptom | None:
    if (figures.late("update", "staleness") or 0.0) >= 1:
        return None
    apart, ess = figures.late("logprob", "mismatch_mean_abs"), figures.late("logprob", "ess")
    if apart is None or (apart < 0.05 and (ess is None or ess > 0.9)):
        return None
    error, mode = figures.late("logprob", "token_mult_prob_error"), figures.config.update.correction.mode
    evidence = f"mean |trainer - sampler| {apart:.3f} nats"
    if error is not None:
        evidence += f", token_mult_prob_error {error:.3f} (1.02 deserves a look)"
    if ess is not None:
        evidence += f", effective sample size {ess:.0%}"
    change = "model.dtype=float32, " if figures.config.model.dtype != "float32" else ""
    change += "update.correction.mode=token_mask" if mode != "token_mask" else "the same kernels for both (engine hf)"
    return Symptom(
        "Sampler and trainer give the same tokens different probabilities, though the weights are the same.",
        evidence,
        f"{change}; the report lists the worst tokens of each round",
    )


def stale_rollouts(figures: Figures) -> Symptom | None:
    staleness, ess = figures.late("update", "staleness"), figures.late("logprob", "ess")
    rejected = figures.late("logprob", "correction_rejected_share") or 0.0
    if staleness is None or staleness < 1 or ((ess is None or ess > 0.8) and rejected < 0.1):
        return None
    evidence = f"rollouts are {staleness:.1f} updates old"
    evidence += "" if ess is None else f", effective sample size {ess:.0%}"
    evidence += f", {rejected:.0%} of the responses rejected" if rejected else ""
    return Symptom(
        "Rollouts are too old for the policy that trains on them: few of them carry the whole gradient.",
        evidence,
        f"max_staleness={max(0, figures.config.max_staleness - 1)}, or a smaller update.learning_rate",
    )


RULES: dict[str, Rule] = {
    "Length limit too small": length_limit_too_small,
    "Length limit too large": length_limit_too_large,
    "Sampler and trainer disagree": sampler_trainer_mismatch,
    "Stale rollouts": stale_rollouts,
}
