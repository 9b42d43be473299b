"""Diagnosis of the signal: rewards that are missing, too rare, all the same, or paid for the wrong thing."""

import math
from statistics import fmean

from burnish.report.comparison import compare
from burnish.report.figures import Figures
from burnish.report.symptom import Rule, Symptom

_KNOWN_FLAGS = ("truncated", "aborted", "malformed", "degraded")
_MOST_SAMPLES = 64


def missing_rewards(figures: Figures) -> Symptom | None:
    missing, samples = sum(figures.by_round("reward", "reward/missing")), sum(figures.by_round("rollout", "samples"))
    if not samples or missing / samples < 0.02:
        return None
    limit = figures.config.reward.verifier_timeout_s
    return Symptom(
        "Verifiers fail or run out of time, so samples have no reward and are not trained on.",
        f"{missing:.0f} of {samples:.0f} samples ({missing / samples:.0%}) have none",
        f"reward.verifier_timeout_s={2 * limit:g}; the reward stage's log names verifiers that fail",
    )


def sparse_reward(figures: Figures) -> Symptom | None:
    none_solved, solved = figures.late("reward", "groups/none_solved"), figures.solved
    # Success that was there and went has another cause.
    if (
        none_solved is None
        or solved is None
        or none_solved < 0.5
        or max(figures.by_round("reward", "solved/mean")) > 0.25
    ):
        return None
    size = figures.config.rollout.samples_per_prompt
    change = "sft.enabled=true with more tasks.0.sft_size, easier tasks, or a second scorer that pays partial success"
    if solved > 0:
        # At which half of the groups hold a success.
        wanted = math.ceil(math.log(0.5) / math.log(1 - min(solved, 0.5)))
        if size < wanted <= _MOST_SAMPLES:
            change = f"rollout.samples_per_prompt={wanted}, at which every second group has a success"
        change += "; update.positive.nll_weight=0.1 makes the successes count"
    return Symptom(
        "Success is too rare to learn from: a group without one has no advantage.",
        f"{solved:.1%} of the late samples are right; {none_solved:.0%} of the groups of {size} have no success",
        change,
    )


def everything_solved(figures: Figures) -> Symptom | None:
    all_solved = figures.late("reward", "groups/all_solved")
    if all_solved is None or all_solved < 0.5:
        return None
    return Symptom(
        "The training prompts are solved: groups in which every answer is right teach nothing.",
        f"{all_solved:.0%} of the late groups are all right, {figures.solved or 0:.0%} of the samples",
        "harder tasks (tasks.0.params) or fewer rounds; update.filters.zero_variance=true saves their cost",
    )


def dead_groups(figures: Figures) -> Symptom | None:
    silent, change = figures.late("update", "zero_variance_share"), figures.reward_change
    # Groups that a falling reward leaves without a success are a consequence.
    if silent is None or silent < 0.6 or (change and change.fell):
        return None
    if sparse_reward(figures) or everything_solved(figures):
        return None
    size = figures.config.rollout.samples_per_prompt
    return Symptom(
        "Most groups have equal rewards, so most of what is sampled has no advantage.",
        f"{silent:.0%} of the late groups of {size} have one reward for all",
        f"rollout.samples_per_prompt={min(2 * size, _MOST_SAMPLES)}, or prompts of medium difficulty; "
        "update.preset=dapo leaves such groups out",
    )


def held_out_flat(figures: Figures) -> Symptom | None:
    change, solved = figures.reward_change, figures.by_round("reward", "solved/mean")
    moves = [(row.k, row.change) for row in compare(figures.view.evaluations) if row.task is None and row.change]
    if change is None or not change.rose or not moves or not solved:
        return None
    k, moved = moves[0]
    # An interval that holds the training's own gain does not contradict it.
    if moved.low > 0 or moved.high >= max(solved[-1] - solved[0], 0.05):
        return None
    return Symptom(
        "Training reward rises and held-out success does not: the policy learns the prompts, or what the scorer pays.",
        f"reward {change.first:.3g} -> {change.last:.3g}, held-out pass@{k} {moved.mean * 100:+.1f} points "
        f"[{moved.low * 100:+.1f}, {moved.high * 100:+.1f}]",
        f"tasks.0.train_size={2 * figures.config.tasks[0].train_size}; read the best-paid rollouts in the report; "
        "gate the reward on the verifier (reward.scorers.0.gate=true)",
    )


def one_component(figures: Figures) -> Symptom | None:
    weights = {scorer.name: scorer.weight for scorer in figures.config.reward.scorers if scorer.weight > 0}
    late = {name: figures.late("reward", f"reward/component/{name}") for name in weights}
    paid = {name: weights[name] * value for name, value in late.items() if value is not None}
    if len(paid) < 2 or sum(paid.values()) <= 0 or min(paid.values()) < 0:
        return None
    most, least = max(paid, key=lambda name: paid[name]), min(paid, key=lambda name: paid[name])
    share = paid[most] / sum(paid.values())
    if share < 0.9 or (late[least] or 0.0) >= 0.1:
        return None
    return Symptom(
        f"One component carries the whole reward: the policy can earn it with {most} and ignore the others.",
        f"{most} is {share:.0%} of the late reward; {least} scores {late[least]:.3g}",
        f"lower the weight of {most}, or set gate=true on {least} (reward.scorers) so that nothing is paid without it",
    )


def length_pays(figures: Figures) -> Symptom | None:
    found = [(each.round or 0, each.stats.length_reward) for each in figures.view.sample_sets if each.round is not None]
    known = [value for _, value in sorted(found) if value is not None]
    lengths = figures.by_round("rollout", "response_length_mean")
    if not known or len(lengths) < 2 or lengths[-1] < 1.3 * lengths[0]:
        return None
    late = fmean(known[-max(1, len(known) // 3) :])
    if late < 0.5:
        return None
    buffer = max(1, figures.config.rollout.max_new_tokens // 4)
    return Symptom(
        "Inside a group longer answers are paid more, and answers grow: length may be what is learned.",
        f"correlation of length and reward in groups {late:.2f}; length {lengths[0]:.0f} -> {lengths[-1]:.0f} tokens",
        f"reward.overlong_buffer={buffer}, or update.preset=dr_grpo, whose loss does not favour length",
    )


def hacking_marks(figures: Figures) -> Symptom | None:
    names = {name for record in figures.view.records if record.stage == "reward" for name in record.metrics}
    marks = sorted(
        name for name in names if name.startswith("flag/") and name.removeprefix("flag/") not in _KNOWN_FLAGS
    )
    counted = {name.removeprefix("flag/"): sum(figures.by_round("reward", name)) for name in marks}
    counted = {name: count for name, count in counted.items() if count}
    if not counted:
        return None
    return Symptom(
        "Samples carry marks of attempts to cheat the verifier.",
        ", ".join(f"{count:.0f} x {name}" for name, count in counted.items()),
        "read them in the report (filter by flag); gate the reward on a verifier that they cannot reach",
    )


RULES: dict[str, Rule] = {
    "Missing rewards": missing_rewards,
    "Sparse reward": sparse_reward,
    "Dead groups": dead_groups,
    "Everything solved": everything_solved,
    "Held-out success flat": held_out_flat,
    "One component carries the reward": one_component,
    "Length pays": length_pays,
    "Marks of hacking": hacking_marks,
}
