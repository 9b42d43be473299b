"""Diagnosis of the update: KL, clipping, learning rates, entropy, the critic, and which samples make the gradient."""

from statistics import fmean

from burnish.report.figures import Figures
from burnish.report.symptom import Rule, Symptom

DETECTOR = "The detector tripped"
# Nats a token from the reference.
_FAR = 0.5
_NEAR = 1e-3


def collapse(figures: Figures) -> Symptom | None:
    found = [each for each in figures.view.verdicts.rounds if each.status in ("rolled_back", "stop")]
    if not found:
        return None
    what = ", ".join(f"round {each.round} was {'stopped' if each.status == 'stop' else 'undone'}" for each in found)
    reasons = [reason.rpartition(": ") for reason in found[-1].reasons]
    return Symptom(
        "The collapse detector tripped.",
        f"{what}: {'; '.join(text for text, _, _ in reasons)}",
        "; ".join(dict.fromkeys(remedy for _, _, remedy in reasons)),
    )


def kl_too_strong(figures: Figures) -> Symptom | None:
    settings, kl = figures.config.update.kl, figures.late("logprob", "kl_ref")
    coef = settings.coef or 0.0
    if kl is None or coef < 0.03 or kl > 2 * _NEAR or not figures.reward_is_flat:
        return None
    return Symptom(
        "The KL term holds the policy at its reference: it cannot move enough to earn more.",
        f"KL {kl:.2g} nats a token with update.kl.coef {coef:g}; {_reward_text(figures)}",
        f"update.kl.coef={coef / 10:g}",
    )


def kl_too_weak(figures: Figures) -> Symptom | None:
    settings, values = figures.config.update.kl, figures.by_round("logprob", "kl_ref")
    if len(values) < 2 or not settings.coef or values[-1] < _FAR:
        return None
    if values[-1] < 2 * _FAR and values[-1] < 2 * fmean(values[: len(values) // 2]):
        return None
    wanted = max(0.01, 5 * settings.coef)
    return Symptom(
        "The policy runs away from its reference, and language goes with it.",
        f"KL {values[0]:.2g} -> {values[-1]:.2g} nats a token with update.kl.coef {settings.coef:g}",
        f"update.kl.coef={wanted:g}, or update.kl.schedule=adaptive with update.kl.target={settings.target:g}",
    )


def clip_too_narrow(figures: Figures) -> Symptom | None:
    loss, clipped = figures.config.update.loss, figures.late_step("clip_fraction")
    if clipped is None or loss.surrogate not in ("clip", "cispo", "gmpo") or loss.ratio != "token" or clipped < 0.25:
        return None
    high = loss.clip_high or 0.0
    return Symptom(
        "Many tokens leave the clip range, so they add no gradient: the steps are larger than the range allows.",
        f"{clipped:.0%} of the late tokens are clipped at -{loss.clip_low:g}/+{high:g}, "
        f"{figures.config.update.steps * figures.config.update.epochs} steps a round",
        f"update.learning_rate={figures.config.update.learning_rate / 2:.2g} or fewer update.steps; "
        f"update.loss.clip_high={high * 1.4:.2g} if the reward still rises",
    )


def clip_too_wide(figures: Figures) -> Symptom | None:
    loss, clipped, ratios = figures.config.update.loss, figures.late_step("clip_fraction"), figures.by_step("ratio_max")
    high = loss.clip_high or 0.0
    # cispo's wide range is meant: its clip bounds a weight.
    if loss.surrogate not in ("clip", "gmpo") or loss.ratio != "token" or high <= 0.4 or clipped is None or not ratios:
        return None
    if clipped > 0.01 or max(ratios) < 1.4:
        return None
    return Symptom(
        "The clip range is so wide that it holds nothing back.",
        f"{clipped:.1%} of the late tokens are clipped at +{high:g} while ratios reach {max(ratios):.2g}",
        "update.loss.clip_low=0.2 update.loss.clip_high=0.28",
    )


def learning_rate_too_high(figures: Figures) -> Symptom | None:
    change, settings = figures.reward_change, figures.config.update
    if change is None or change.rose:
        return None
    # The damage may be done in one round, after which little is clipped.
    clipped = max(figures.by_round("update", "clip_fraction"), default=0.0)
    kl, norm = (
        max(figures.by_round(*where), default=0.0) for where in (("logprob", "kl_ref"), ("update", "grad_norm"))
    )
    signs = [
        f"up to {clipped:.0%} of the tokens clipped" if clipped > 0.2 and change.fell else "",
        f"KL up to {kl:.2g} nats a token" if kl > (_FAR / 2 if change.fell else _FAR) else "",
        f"gradient norm up to {norm:.3g}" if norm > 10 * settings.max_grad_norm else "",
    ]
    seen = [sign for sign in signs if sign]
    if not seen:
        return None
    return Symptom(
        "The steps are too large: the policy moves far and earns nothing by it.",
        f"{_reward_text(figures)}; {', '.join(seen)}",
        f"update.learning_rate={settings.learning_rate / 3:.1g}, update.warmup_steps=10",
    )


def learning_rate_too_low(figures: Figures) -> Symptom | None:
    settings, some = figures.config.update, figures.late("reward", "groups/some_solved")
    silent = figures.late("update", "zero_variance_share")
    signal = some if some is not None else None if silent is None else 1 - silent
    kl, ratios = figures.late("logprob", "kl_ref"), figures.by_step("ratio_max")
    if not figures.reward_is_flat or signal is None or signal < 0.2 or (kl is not None and kl > _NEAR):
        return None
    if kl_too_strong(figures) or not ratios or max(ratios) > 1.05:
        return None
    moved = f"KL {kl:.1g} nats a token" if kl is not None else f"no ratio above {max(ratios):.3f}"
    return Symptom(
        "The policy hardly moves, though groups have a signal.",
        f"{_reward_text(figures)}; {moved}; {signal:.0%} of the groups have unequal rewards",
        f"update.learning_rate={settings.learning_rate * 3:.1g}, or more update.steps a round",
    )


def rates_far_apart(figures: Figures) -> Symptom | None:
    settings = figures.config.update
    if not settings.needs_critic or not settings.learning_rate:
        return None
    ratio = settings.critic.learning_rate / settings.learning_rate
    if 1 <= ratio <= 30:
        return None
    side = "slower than" if ratio < 1 else "far faster than"
    return Symptom(
        f"The critic learns {side} the policy, so its values lag or jump.",
        f"update.critic.learning_rate {settings.critic.learning_rate:g} is {ratio:.2g} x update.learning_rate",
        f"update.critic.learning_rate={10 * settings.learning_rate:.1g}",
    )


def critic_not_learning(figures: Figures) -> Symptom | None:
    explained = figures.late("update", "explained_variance")
    if explained is None or explained > 0.0 or len(figures.by_round("update", "explained_variance")) < 2:
        return None
    critic = figures.config.update.critic
    return Symptom(
        "The critic explains nothing of the returns: its advantages are worse than those from a constant.",
        f"late explained variance {explained:.2f}",
        f"update.critic.warmup_rounds={critic.warmup_rounds + 2}, update.critic.epochs={critic.epochs + 1}; or "
        "update.preset=grpo, which needs no critic",
    )


def entropy_collapse(figures: Figures) -> Symptom | None:
    values, low = figures.by_round("logprob", "entropy"), figures.config.collapse.entropy_low
    change = figures.reward_change
    if len(values) < 3 or values[-1] > low * values[0] or (figures.solved or 0.0) >= 0.9 or (change and change.rose):
        return None
    loss, kl = figures.config.update.loss, figures.config.update.kl.coef or 0.0
    return Symptom(
        "The policy became near deterministic before it became right: it no longer explores.",
        f"entropy {values[0]:.2f} -> {values[-1]:.2f} nats a token; {_reward_text(figures)}",
        f"update.loss.clip_high={max(0.28, (loss.clip_high or 0.2) + 0.08):.2f}"
        + f", update.kl.coef={0.01 if not kl else 2 * kl:g}"
        + f", update.learning_rate={figures.config.update.learning_rate / 2:.2g}",
    )


def entropy_explosion(figures: Figures) -> Symptom | None:
    values, high = figures.by_round("logprob", "entropy"), figures.config.collapse.entropy_high
    if len(values) < 2 or values[-1] < high * max(values[0], 0.05):
        return None
    kl = figures.config.update.kl.coef or 0.0
    return Symptom(
        "The policy drifts towards noise.",
        f"entropy {values[0]:.2f} -> {values[-1]:.2f} nats a token",
        f"update.learning_rate={figures.config.update.learning_rate / 3:.1g}, update.kl.coef={max(0.01, 2 * kl):g}; "
        "update.positive.negative_token_floor=0.01 spares tokens that are unlikely already",
    )


def negative_samples_dominate(figures: Figures) -> Symptom | None:
    gradient, share = figures.late_step("negative_gradient_share"), figures.late("update", "negative_share")
    bound, weight = figures.config.update.positive.warn_share, figures.config.update.positive.advantage_weight
    if (gradient is None or gradient < bound) and (share is None or share < 0.9):
        return None
    evidence = [
        f"{gradient:.0%} of the late gradient norm is theirs" if gradient is not None else "",
        f"{share:.0%} of the trained samples have a negative advantage" if share is not None else "",
    ]
    return Symptom(
        "Failures make most of the gradient: the policy learns what not to say, and drifts.",
        ", ".join(part for part in evidence if part),
        f"update.positive.advantage_weight={2 * weight:g} or update.positive.nll_weight=0.1; "
        "update.positive.negative_keep=0.5",
    )


def _reward_text(figures: Figures) -> str:
    change = figures.reward_change
    return "reward not measured" if change is None else f"reward {change.first:.3g} -> {change.last:.3g}"


RULES: dict[str, Rule] = {
    DETECTOR: collapse,
    "KL too strong": kl_too_strong,
    "KL too weak": kl_too_weak,
    "Clip too narrow": clip_too_narrow,
    "Clip too wide": clip_too_wide,
    "Learning rate too high": learning_rate_too_high,
    "Learning rate too low": learning_rate_too_low,
    "Actor and critic rates far apart": rates_far_apart,
    "Critic not learning": critic_not_learning,
    "Entropy collapse": entropy_collapse,
    "Entropy explosion": entropy_explosion,
    "Negative samples dominate": negative_samples_dominate,
}
