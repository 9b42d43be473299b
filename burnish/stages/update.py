"""update: advantages, filters and optimizer steps; writes the next policy, the trainer's memory and a verdict.

Reading order: update_round (what is trained on), update_step (one optimizer step), update_verdict (whether it went
well), trainer_state (what is kept).
"""

import dataclasses
import math
import random
import time
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from burnish.contracts.errors import ContractError
from burnish.contracts.parquet import read_records
from burnish.contracts.records import Logprob, Reward, Rollout
from burnish.contracts.verdict import VERDICT_FILE, Good, Verdict
from burnish.maths.kl import next_kl_coef
from burnish.maths.schedule import next_lr_scale
from burnish.models.load import load_trainable
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.models.runtime import setup_torch
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce
from burnish.stages.ranks import train_on_ranks
from burnish.stages.trainer_state import (
    MOMENTS_FILE,
    build_optimizer,
    load_moments,
    read_trainer_state,
    save_moments,
    write_trainer_state,
)
from burnish.stages.update_batch import Batch
from burnish.stages.update_critic import SharedCriticTrainer, input_critic, train_critic
from burnish.stages.update_filters import warnings
from burnish.stages.update_plan import Plan
from burnish.stages.update_round import build_batch
from burnish.stages.update_step import NotFinite, PolicyTrainer
from burnish.stages.update_verdict import judge

Row = dict[str, float | None]

# What the collapse detector looks at, from each row of the series.
_WATCHED = (
    "step", "reward", "entropy", "kl", "loss", "grad_norm", "response_length", "truncated_share", "clip_fraction",
    "ess", "mismatch",
)  # fmt: skip


def run(context: StageContext) -> StageResult:
    """Write the updated policy, trainer state, critic and verdict: `epochs` x `steps` optimizer steps further.

    When the verdict is to roll back or to stop, the last good policy, trainer state and critic are the outputs.
    Raises ContractError when the inputs do not belong together, and StageError when loss or gradient is not finite
    and the collapse detector may not act on it; then nothing is written.
    """
    return train_on_ranks(context, train)


def train(context: StageContext, ranks: Ranks) -> StageResult:
    """The stage's work as one of `ranks`, the first of which writes the outputs."""
    config, settings = context.config, context.config.update
    device = setup_torch(config.runtime, context.seed)
    rollouts = read_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout)
    rewards = read_records(context.input_dir("rewards") / "rewards.parquet", Reward)
    logprobs = read_records(context.input_dir("logprobs") / "logprobs.parquet", Logprob)
    previous = _read_verdict(context)
    state = read_trainer_state(context.input_dir("trainer_state"))
    rounds = config.start.total_rounds or config.last_round
    plan = Plan(settings, rounds, context.round or 1, state, previous.lr_factor)
    batch, metrics = build_batch(
        rollouts,
        rewards,
        logprobs,
        settings,
        kl_coef=plan.kl_coef(state.step),
        reward=config.reward,
        seed=context.seed,
    )
    for line in warnings(rollouts, metrics["negative_share"], config.rollout.max_new_tokens):
        announce(f"{context.title}: {line}")

    source = context.input_dir("policy")
    critic = input_critic(context) if settings.needs_critic else None
    critic_rows: list[Row] = []
    if critic and critic.layers:
        # Its targets are fixed by now, so it is trained, written and forgotten before the policy takes the memory.
        critic_rows = train_critic(context, critic, batch, _mini_batches(context, batch), plan, ranks, device)
    model, tokenizer, _ = load_trainable(
        source, config.model, device=device if ranks.world == 1 else "cpu", seed=context.seed
    )
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    policy = ParallelPolicy(model, ranks, device=device, dtype=dtype)
    policy.take_probe(rollouts)
    optimizer = build_optimizer(model, betas=settings.betas, weight_decay=settings.weight_decay)
    load_moments(context.input_dir("trainer_state") / MOMENTS_FILE, model, optimizer)
    shared = SharedCriticTrainer.open(context, critic, policy) if critic and not critic.layers else None
    trainer = PolicyTrainer(
        policy,
        optimizer,
        settings,
        completion_limit=config.rollout.max_new_tokens,
        title=context.title,
        clip_factor=previous.clip_factor,
        extra_loss=shared.extra_loss if shared else None,
    )
    started = time.perf_counter()
    series = take_steps(context, trainer, batch, plan, metrics, shared)
    seconds = time.perf_counter() - started
    for row, learned in zip(series, critic_rows, strict=False):
        row |= learned
    state = dataclasses.replace(
        state, step=state.step + len(series), **_measured(trainer, batch, plan, metrics, series)
    )

    verdict = judge(
        previous,
        [{name: row.get(name) for name in _WATCHED} for row in series],
        context.round or 1,
        Good(**{name: context.inputs[name].digest for name in ("policy", "trainer_state", "critic")}),
        config.collapse,
    )
    for reason in verdict.reasons:
        announce(f"{context.title}: {verdict.status}: {reason}")
    if ranks.rank == 0:
        (context.output_dir("updated_verdict") / VERDICT_FILE).write_text(verdict.model_dump_json(), "utf-8")
    version = int(context.inputs["policy"].metadata["policy_version"])
    metrics = _step_means(series) | {name: value for name, value in metrics.items() if name not in ("entropy", "kl")}
    metrics["staleness"] = fmean(version - rollout.policy_version for rollout in rollouts) if rollouts else None
    metrics["critic_lr_ratio"] = settings.critic_lr_ratio
    metrics["tokens_per_second"] = sum(row.get("tokens") or 0.0 for row in series) / seconds
    result = StageResult(metrics, _finite(series), metadata={"updated_verdict": verdict.metadata})
    if verdict.status in ("rolled_back", "stop"):
        assert verdict.last_good is not None
        result.reused = {f"updated_{name}": digest for name, digest in verdict.last_good.model_dump().items()}
        return result
    trust = config.model.trust_remote_code
    policy.save(context.output_dir("updated_policy"), tokenizer, source=source, trust_remote_code=trust)
    folder = context.output_dir("updated_trainer_state")
    save_moments(folder / MOMENTS_FILE, model, optimizer, write=ranks.rank == 0)
    if ranks.rank == 0:
        write_trainer_state(folder, state)
    result.metadata |= {
        "updated_policy": {"policy_version": version + 1, "step": state.step},
        "updated_trainer_state": {"step": state.step},
    }
    if shared:
        shared.save(context.output_dir("updated_critic"), folder)
    elif not critic:
        result.reused = {"updated_critic": context.inputs["critic"].digest}
    return result


def take_steps(
    context: StageContext,
    trainer: PolicyTrainer,
    batch: Batch,
    plan: Plan,
    figures: dict[str, float | None],
    shared: SharedCriticTrainer | None = None,
) -> list[Row]:
    """Take the round's optimizer steps; returns a row for each.

    figures: those of the round's samples; shared: the critic on the policy's layers.

    A loss or gradient that is not finite ends the round with a row that says so, if the detector may act on it.
    """
    config, settings = context.config, context.config.update
    # What a step does not measure (all of it, when it is skipped) is known from before the round.
    known = {name: figures[name] for name in ("entropy", "kl", "mismatch", "response_length", "truncated_share")}
    known["reward"] = figures["reward_mean"]
    series: list[Row] = []
    measured = False
    for rows in _mini_batches(context, batch):
        step = plan.state.step + len(series)
        row: Row = {**known, "step": float(step + 1), "kl_coef": plan.kl_coef(step)}
        if plan.critic_only:
            learned = shared.train(batch, rows, plan.critic_rate(step)) if shared else {}
            series.append(row | learned | {"skipped": 0.0})
            continue
        try:
            row |= trainer.step(
                batch, rows, rate=plan.rate(step), kl_coef=plan.kl_coef(step), measure_signs=not measured
            )
        except NotFinite as error:
            if config.collapse.action not in ("stop", "rollback"):
                raise
            return [*series, row | error.figures | {"skipped": 0.0, "lr": plan.rate(step)}]
        series.append(row)
        if shared and not row["skipped"]:
            row |= shared.follow(plan.critic_rate(step))
        if row["skipped"]:
            announce(f"{context.title}: step {step + 1} skipped: no group in it has rewards that differ")
        share = row.get("negative_gradient_share")
        if share is not None:
            measured = True
            if share > settings.positive.warn_share:
                announce(
                    f"{context.title}: samples with negative advantage make up {share:.0%} of the gradient; "
                    "update.positive (advantage_weight, negative_keep, nll_weight) makes the positive ones count"
                )
    return series


def _mini_batches(context: StageContext, batch: Batch) -> Iterator[list[int]]:
    settings = context.config.update
    return mini_batches(batch, steps=settings.steps, epochs=settings.epochs, seed=context.seed)


def mini_batches(batch: Batch, *, steps: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Rows of each optimizer step: every epoch deals all groups, whole and in a seeded order, to `steps` parts.

    With fewer groups than steps some parts are empty.
    """
    groups = batch.group_rows()
    for epoch in range(epochs):
        order = list(range(len(groups)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        for part in range(steps):
            yield [row for number in order[part::steps] for row in groups[number]]


def _measured(
    trainer: PolicyTrainer, batch: Batch, plan: Plan, metrics: dict[str, float | None], series: Sequence[Row]
) -> dict[str, float]:
    """Fields of the next trainer state that follow a measurement; the measurements go into `metrics`."""
    settings, state = trainer.settings, plan.state
    fields: dict[str, float] = {}
    if settings.kl.coef and settings.kl.schedule == "adaptive":
        samples = int(metrics["samples"] or 0)
        coef = plan.kl_coef(state.step)
        fields["kl_coef"] = next_kl_coef(coef, metrics["kl"], settings.kl.target, samples, settings.kl.horizon)
    if settings.schedule == "kl_adaptive" and any("grad_norm" in row for row in series):
        metrics["update_kl"] = trainer.divergence(batch)
        metrics["lr_scale"] = state.lr_scale
        fields["lr_scale"] = next_lr_scale(state.lr_scale, metrics["update_kl"], settings.kl_adaptive_target)
    return fields


def _read_verdict(context: StageContext) -> Verdict:
    path = context.input_dir("verdict") / VERDICT_FILE
    if not path.exists():
        raise ContractError(f"verdict: {VERDICT_FILE} is not there; start from the sft stage's verdict")
    return Verdict.from_json(path.read_bytes(), str(path.name))


def _step_means(series: Sequence[Row]) -> dict[str, float | None]:
    """The round's figures: means over the steps that know them, the last learning rate, the number of the skipped."""
    means: dict[str, float | None] = {}
    for key in {key: None for row in series for key in row}:
        if key in {"step", "lr", "skipped", "samples", "groups"}:
            continue
        values = [value for row in series if (value := row.get(key)) is not None and math.isfinite(value)]
        means[key] = fmean(values) if values else None
    return means | {
        "lr": series[-1].get("lr") if series else None,
        "steps_skipped": float(sum(bool(row["skipped"]) for row in series)),
    }


def _finite(series: Sequence[Row]) -> list[Row]:
    """`series` as records hold it: what is not finite was not measured."""
    return [
        {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
        for row in series
    ]


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("update")
