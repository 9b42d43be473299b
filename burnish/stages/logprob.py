"""logprob: the trainer's own logprobs of what the sampler drew, under the policy and, for a KL term, the reference.

Runs beside execute and reward: it needs the rollouts and the weights alone. Its metrics say how far sampler and
trainer disagree.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.contracts.artifacts import Manifest
from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.records import Logprob, Rollout, read_records, write_records
from burnish.maths.correction import effective_sample_share, truncated_importance_weights
from burnish.maths.diagnostics import mismatch
from burnish.maths.kl import kl_estimate
from burnish.models.load import load_policy
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.probe import probe_model
from burnish.models.runtime import setup_torch
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import progress

_WORST_TOKENS = 10


def run(context: StageContext) -> StageResult:
    """Write `logprobs.parquet`: one row a rollout, aligned with its response_ids.

    Raises ContractError for rollouts whose sampler drew from another distribution than the trainer can recompute,
    StageError when the model's logprobs are not finite.
    """
    config = context.config
    device = setup_torch(config.runtime, context.seed)
    rollouts = read_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout)
    _require_recomputable(rollouts)
    started = time.perf_counter()
    old, entropy = _score(context, "policy", rollouts, device)
    seconds = time.perf_counter() - started
    reference = None
    if config.update.kl.coef:
        same = _weights(context.inputs["policy"]) == _weights(context.inputs["reference"])
        reference = old if same else _score(context, "reference", rollouts, device)[0]
    write_records(
        context.output_dir("logprobs") / "logprobs.parquet",
        (
            Logprob(
                rollout.sample_id,
                old[index].tolist(),
                None if reference is None else reference[index].tolist(),
                entropy[index].tolist(),
            )
            for index, rollout in enumerate(rollouts)
        ),
        Logprob,
    )
    tokens = sum(len(rollout.response_ids) for rollout in rollouts)
    metrics = _metrics(context, rollouts, old, entropy, reference)
    metrics |= {"tokens": float(tokens), "tokens_per_second": tokens / seconds}
    return StageResult(
        metrics,
        counts={"logprobs": {"samples": len(rollouts), "tokens": tokens}},
        metadata={"logprobs": {"worst_tokens": _worst_tokens(rollouts, old)}},
    )


def _require_recomputable(rollouts: Sequence[Rollout]) -> None:
    if not rollouts:
        raise ContractError("rollouts.parquet holds no rows; there is nothing to compute logprobs of")
    for rollout in rollouts:
        if rollout.top_p < 1 or rollout.top_k > 0:
            raise ContractError(
                f"rollout {rollout.sample_id}: sampled with top_p={rollout.top_p}, top_k={rollout.top_k}; truncated "
                "sampling biases the importance ratio, use rollout.top_p=1 and rollout.top_k=0"
            )
        if rollout.logprobs_mode != "processed":
            raise ContractError(
                f"rollout {rollout.sample_id}: logprobs_mode is {rollout.logprobs_mode!r}; the sampler must record "
                "'processed' logprobs, after division by the temperature"
            )


def _weights(manifest: Manifest) -> list[tuple[str, str]]:
    """What decides a model's outputs: weights and configuration, by digest."""
    return [
        (blob.path, blob.sha256)
        for blob in manifest.blobs
        if blob.path.endswith(".safetensors") or blob.path == "config.json"
    ]


def _score(
    context: StageContext, name: str, rollouts: list[Rollout], device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Logprobs and entropies of each rollout, [R] float32 on the CPU, under the input policy `name`."""
    config = context.config
    model = load_policy(
        context.input_dir(name),
        device=device,
        attention=config.model.attention,
        trust_remote_code=config.model.trust_remote_code,
    ).model
    batches = plan_batches(
        probe_model(model),
        rollouts,
        token_budget=config.logprob.token_budget,
        share_prompt=config.update.share_prompt,
    )
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    logprobs: dict[int, Tensor] = {}
    entropies: dict[int, Tensor] = {}
    with torch.inference_mode():
        for batch in progress(batches, len(batches), f"{context.title}: {name}", "batches"):
            values, entropy = token_logprobs(model, batch, dtype=dtype, chunk_tokens=config.logprob.chunk_tokens)
            logprobs |= zip(batch.order, torch.split(values.cpu(), batch.lengths), strict=True)
            entropies |= zip(batch.order, torch.split(entropy.cpu(), batch.lengths), strict=True)
    for index, rollout in enumerate(rollouts):
        if not logprobs[index].isfinite().all():
            raise StageError(f"rollout {rollout.sample_id}: its logprobs under the {name} are not finite")
    indices = range(len(rollouts))
    return [logprobs[index] for index in indices], [entropies[index] for index in indices]


def _metrics(
    context: StageContext,
    rollouts: list[Rollout],
    old: list[Tensor],
    entropy: list[Tensor],
    reference: list[Tensor] | None,
) -> dict[str, float | None]:
    """Means over the tokens the policy generated."""
    config = context.config
    generated = torch.cat([torch.tensor(rollout.loss_mask) for rollout in rollouts]) == 1
    old_tokens = torch.cat(old)[generated]
    sampler = torch.cat([torch.tensor(rollout.rollout_logprobs) for rollout in rollouts])[generated]
    figures = mismatch(old_tokens, sampler, config.logprob.ratio_bounds)
    if figures is None:
        raise ContractError("rollouts.parquet: loss_mask is 0 everywhere; there is no token to train on")
    capped = config.update.correction.mode == "token_tis"
    weights = truncated_importance_weights(
        old_tokens, sampler, cap=(config.update.correction.cap or 2.0) if capped else float("inf")
    )
    kl = None
    if reference is not None:
        kl = float(kl_estimate(old_tokens, torch.cat(reference)[generated], "k3").mean())
    return {
        "entropy": float(torch.cat(entropy)[generated].mean()),
        "kl_ref": kl,
        "mismatch_kl": figures.kl,
        "mismatch_k3": figures.k3,
        "mismatch_mean_abs": figures.mean_abs,
        "mismatch_chi2": figures.chi2,
        "ratio_outside_share": figures.share_outside,
        "token_mult_prob_error": figures.token_mult_prob_error,
        "ess": effective_sample_share(weights),
    }


def _worst_tokens(rollouts: list[Rollout], old: list[Tensor]) -> list[dict[str, Any]]:
    """Where sampler and trainer disagree most, the worst first."""
    found = [
        (abs(trainer - sampler), rollout.sample_id, position, trainer, sampler)
        for rollout, values in zip(rollouts, old, strict=True)
        for position, (trainer, sampler, mask) in enumerate(
            zip(values.tolist(), rollout.rollout_logprobs, rollout.loss_mask, strict=True)
        )
        if mask
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [
        {"sample_id": sample_id, "position": position, "trainer": trainer, "sampler": sampler}
        for _, sample_id, position, trainer, sampler in found[:_WORST_TOKENS]
    ]


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("logprob")
