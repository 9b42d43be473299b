"""update: advantages, filters and optimizer steps; writes the next policy and the trainer's memory.

Reading order: update_batch (what is trained on), update_step (one optimizer step), trainer_state (what is kept).
"""

import random
import time
from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from burnish.contracts.records import Logprob, Reward, Rollout, read_records
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.maths.schedule import learning_rate
from burnish.models.load import load_policy, save_policy
from burnish.models.probe import probe_model
from burnish.models.runtime import setup_torch
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce
from burnish.stages.trainer_state import build_optimizer, load_trainer_state, save_trainer_state
from burnish.stages.update_batch import Batch, build_batch
from burnish.stages.update_step import PolicyTrainer


def run(context: StageContext) -> StageResult:
    """Write `updated_policy` and `updated_trainer_state`: `epochs` x `steps` optimizer steps further.

    Raises ContractError when the inputs do not belong together, StageError when loss or gradient is not finite; then
    nothing is written.
    """
    config, settings = context.config, context.config.update
    device = setup_torch(config.runtime, context.seed)
    rollouts = read_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout)
    rewards = read_records(context.input_dir("rewards") / "rewards.parquet", Reward)
    logprobs = read_records(context.input_dir("logprobs") / "logprobs.parquet", Logprob)
    batch, metrics = build_batch(rollouts, rewards, logprobs, settings)

    model, tokenizer, _ = load_policy(
        context.input_dir("policy"),
        device=device,
        attention=config.model.attention,
        trust_remote_code=config.model.trust_remote_code,
    )
    optimizer = build_optimizer(model, betas=settings.betas, weight_decay=settings.weight_decay)
    step = load_trainer_state(context.input_dir("trainer_state"), model, optimizer)
    trainer = PolicyTrainer(
        model,
        optimizer,
        probe_model(model),
        settings,
        completion_limit=config.rollout.max_new_tokens,
        dtype=torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32,
        title=context.title,
    )
    total_steps = config.rounds * settings.steps * settings.epochs
    series: list[dict[str, float | None]] = []
    started = time.perf_counter()
    for rows in mini_batches(batch, steps=settings.steps, epochs=settings.epochs, seed=context.seed):
        rate = learning_rate(
            step,
            total_steps=total_steps,
            peak=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            schedule=settings.schedule,
            final_ratio=settings.final_lr_ratio,
        )
        figures = trainer.step(batch, rows, rate)
        step += 1
        if figures["skipped"]:
            announce(f"{context.title}: step {step} skipped: no group in it has rewards that differ")
        series.append({"step": float(step), **figures})
    seconds = time.perf_counter() - started

    save_policy(model, tokenizer, context.output_dir("updated_policy"))
    (context.output_dir("updated_verdict") / VERDICT_FILE).write_text(Verdict().model_dump_json(), "utf-8")
    save_trainer_state(context.output_dir("updated_trainer_state"), model, optimizer, step)
    version = int(context.inputs["policy"].metadata["policy_version"])
    metrics |= _step_means(series)
    metrics["staleness"] = fmean(version - rollout.policy_version for rollout in rollouts) if rollouts else None
    metrics["tokens_per_second"] = sum(row.get("tokens") or 0.0 for row in series) / seconds
    return StageResult(
        metrics,
        series,
        metadata={
            "updated_policy": {"policy_version": version + 1, "step": step},
            "updated_trainer_state": {"step": step},
            "updated_verdict": Verdict().metadata,
        },
        reused={"updated_critic": context.inputs["critic"].digest},
    )


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


def _step_means(series: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """The round's figures: means over the steps that were taken, the last learning rate, the number of the skipped."""
    taken = [row for row in series if not row["skipped"]]
    means: dict[str, float | None] = {}
    for key in taken[0] if taken else ():
        if key in {"step", "lr", "skipped", "samples", "groups"}:
            continue
        values = [value for row in taken if (value := row[key]) is not None]
        means[key] = fmean(values) if values else None
    means |= {"lr": series[-1]["lr"], "steps_skipped": float(len(series) - len(taken))}
    return means


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("update")
