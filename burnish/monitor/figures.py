"""What Prometheus is told of a run: one gauge a figure, of the latest round that has it.

Only the latest round is served, so a run has few series at a time, and its curve is the gauge over time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from burnish.contracts.artifacts import StageRecord, stage_title
from burnish.contracts.cost import run_cost
from burnish.monitor.watcher import WatchedRun

Sample = tuple[str, dict[str, str], float]
"""Name of a metric, labels, value."""

ROUND_FIGURES: dict[str, tuple[str, str, str]] = {
    "burnish_reward_mean": ("reward", "reward/mean", "Mean reward of a round's samples."),
    "burnish_solved_share": ("reward", "solved/mean", "Share of a round's samples that are right."),
    "burnish_kl": ("logprob", "kl_ref", "KL divergence of a round's samples from the reference, nats a token."),
    "burnish_entropy": ("logprob", "entropy", "Entropy of the policy on a round's samples, nats a token."),
    "burnish_effective_samples_share": ("logprob", "ess", "Effective sample size after correction, as a share."),
    "burnish_mismatch": ("logprob", "mismatch_mean_abs", "Mean |trainer - sampler| of the logprobs, nats."),
    "burnish_response_tokens_mean": ("rollout", "response_length_mean", "Mean length of a round's responses."),
    "burnish_truncated_share": ("rollout", "truncated_share", "Share of responses that the length limit cut."),
    "burnish_clip_fraction": ("update", "clip_fraction", "Share of tokens whose ratio was clipped."),
    "burnish_grad_norm": ("update", "grad_norm", "Mean gradient norm of a round's optimizer steps."),
}
"""Stage, its metric, and help, by the metric's name here; labels: run_id, name, round."""

RUN_FIGURES: dict[str, str] = {
    "burnish_run_active": "1 until the report, which every run ends with, is there.",
    "burnish_run_progress_timestamp_seconds": "When a stage last left a record, by the store's clock.",
    "burnish_run_rounds": "Rounds that the run shall have.",
    "burnish_run_rounds_done": "Rounds that were trained.",
    "burnish_run_failed_stages": "Stages whose last attempt failed.",
    "burnish_run_stopped": "1 when the collapse detector or the budget ended the run early.",
    "burnish_entropy_start": "Entropy of the first round.",
    "burnish_evaluation_pass": "Held-out pass@k; labels: when (before, after), k.",
    "burnish_cost": "What the run has cost; label: currency. Missing where prices or resources are not known.",
    "burnish_budget": "What the run may cost; label: currency.",
    "burnish_stage_seconds": "Duration of a stage in the latest round that has it; labels: stage, round.",
    "burnish_stage_gpu_utilization_percent": "Mean utilisation of a stage's GPUs; labels: stage, round.",
}
"""Help by name; labels: run_id, name and those that are named."""


def samples(run: WatchedRun) -> Iterator[Sample]:
    """All of `run`; what was not measured is left out."""
    # Until the configuration is there, the run's id says its name, before the digest.
    own = {"run_id": run.run_id, "name": run.config.name if run.config else run.run_id.rpartition("-")[0]}
    for name, labels, value in _measured(run):
        if value is not None and math.isfinite(value):
            yield name, own | labels, value


def _measured(run: WatchedRun) -> Iterator[tuple[str, dict[str, str], float | None]]:
    updates = [record for record in run.records if record.stage == "update" and not record.error]
    yield "burnish_run_active", {}, float(not run.over)
    yield "burnish_run_progress_timestamp_seconds", {}, run.progressed
    yield "burnish_run_rounds_done", {}, float(sum(not record.skipped for record in updates))
    yield "burnish_run_failed_stages", {}, float(sum(record.error is not None for record in run.records))
    yield "burnish_run_stopped", {}, float(any(record.skipped for record in run.records))
    finished = [record for record in run.records if not record.error and not record.skipped]
    latest = _latest(record for record in finished if not record.shard)
    for name, (stage, key, _) in ROUND_FIGURES.items():
        if stage in latest:
            yield name, {"round": str(latest[stage].round)}, latest[stage].metrics.get(key)
    if "logprob" in latest:
        first = min((record for record in finished if record.stage == "logprob"), key=lambda record: record.round or 0)
        yield "burnish_entropy_start", {}, first.metrics.get("entropy")
    for record in finished:
        if record.stage == "evaluate":
            for key, value in record.metrics.items():
                if key.startswith("pass@") and "/" not in key:
                    yield "burnish_evaluation_pass", {"when": record.label, "k": key.removeprefix("pass@")}, value
    for stage, record in _latest(finished).items():
        where = {"stage": stage, "round": "" if record.round is None else str(record.round)}
        yield "burnish_stage_seconds", where, record.seconds
        yield "burnish_stage_gpu_utilization_percent", where, _gpu_utilization(record.load)
    if run.config:
        yield "burnish_run_rounds", {}, float(run.config.rounds)
        money = {"currency": run.config.cost.currency}
        yield "burnish_cost", money, run_cost(run.records, run.config.cost)
        yield "burnish_budget", money, run.config.cost.budget


def _latest(records: Iterable[StageRecord]) -> dict[str, StageRecord]:
    """The record of the latest round of each stage, by its title without the round: `rollout`, `evaluate - after`."""
    ordered = sorted(records, key=lambda record: record.round or 0)
    return {stage_title(record.stage, label=record.label, shard=record.shard): record for record in ordered}


def _gpu_utilization(load: Sequence[Mapping[str, float]]) -> float | None:
    """Percent, over all GPUs and moments; None without a GPU."""
    values = [value for row in load for name, value in row.items() if name.endswith("_utilization_percentage")]
    return fmean(values) if values else None
