"""logprob: the trainer's own logprobs of what the sampler drew, under the policy and, for a KL term, the reference.

Runs beside execute and reward: it needs the rollouts and the weights alone. For PPO it adds the critic's values; one
model is in memory at a time. Its metrics (logprob_figures) say how far sampler and trainer disagree.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from burnish.contracts.artifacts import Manifest
from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Logprob, Rollout
from burnish.models.backbone import completion_states
from burnish.models.critic import CriticOrigin, find_critic, head_values, load_critic
from burnish.models.grouping import PackedBatch
from burnish.models.load import load_policy
from burnish.models.logprobs import plan_batches, state_logprobs
from burnish.models.probe import ModelTraits, probe_layers, probe_model
from burnish.models.runtime import setup_torch
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.logprob_figures import figures, worst_tokens
from burnish.stages.progress import progress


def run(context: StageContext) -> StageResult:
    """Write `logprobs.parquet`: one row a rollout, aligned with its response_ids.

    Raises ContractError for rollouts whose sampler drew from another distribution than the trainer can recompute and
    for a critic that does not fit, StageError when a logprob or a value is not finite.
    """
    config = context.config
    device = setup_torch(config.runtime, context.seed)
    rollouts = read_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout)
    _require_recomputable(rollouts)
    critic = _find_critic(context)
    started = time.perf_counter()
    shared = critic.head.to(device) if critic and critic.layers is None and not critic.silent else None
    old, entropy, values = _score(context, "policy", rollouts, device, shared)
    seconds = time.perf_counter() - started
    reference = None
    if config.update.kl.coef:
        same = _weights(context.inputs["policy"]) == _weights(context.inputs["reference"])
        reference = old if same else _score(context, "reference", rollouts, device)[0]
    if critic and values is None:
        values = _values(context, critic, rollouts, device)
    write_records(
        context.output_dir("logprobs") / "logprobs.parquet",
        (
            Logprob(
                rollout.sample_id,
                old[index].tolist(),
                None if reference is None else reference[index].tolist(),
                entropy[index].tolist(),
                None if values is None else values[index].tolist(),
            )
            for index, rollout in enumerate(rollouts)
        ),
        Logprob,
    )
    tokens = sum(len(rollout.response_ids) for rollout in rollouts)
    metrics = figures(rollouts, old, entropy, reference, values, config.update, config.logprob.ratio_bounds)
    metrics |= {"tokens": float(tokens), "tokens_per_second": tokens / seconds}
    return StageResult(
        metrics,
        counts={"logprobs": {"samples": len(rollouts), "tokens": tokens}},
        metadata={"logprobs": {"worst_tokens": worst_tokens(rollouts, old)}},
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


def _find_critic(context: StageContext) -> CriticOrigin | None:
    """The critic as the update will find it; None when nothing asks for values."""
    config = context.config
    if not config.update.needs_critic:
        return None
    return find_critic(
        context.input_dir("critic"), context.input_dir("policy"), config.update.critic, config.model, context.workdir
    )


def _score(
    context: StageContext,
    name: str,
    rollouts: list[Rollout],
    device: torch.device,
    value_head: torch.nn.Linear | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor] | None]:
    """Logprobs, entropies and, with a `value_head` on the same layers, values of each rollout under the input policy
    `name`."""
    config = context.config
    model = load_policy(
        context.input_dir(name),
        device=device,
        attention=config.model.attention,
        trust_remote_code=config.model.trust_remote_code,
    ).model

    def score(batch: PackedBatch) -> tuple[Tensor, ...]:
        states = completion_states(model, batch, _dtype(context))
        scored = state_logprobs(model, states, batch, config.logprob.chunk_tokens)
        return scored if value_head is None else (*scored, head_values(value_head, states))

    logprobs, entropies, *values = _over_batches(context, name, rollouts, probe_model(model), score)
    return logprobs, entropies, values[0] if values else None


def _values(context: StageContext, critic: CriticOrigin, rollouts: list[Rollout], device: torch.device) -> list[Tensor]:
    """Values of each rollout under a critic with layers of its own, or any whose head is zero."""
    if critic.silent:
        return [torch.zeros(len(rollout.response_ids)) for rollout in rollouts]
    model = load_critic(critic, context.config.model, device)
    traits = probe_layers(model.layers)
    (values,) = _over_batches(context, "critic", rollouts, traits, lambda batch: (model(batch, _dtype(context)),))
    return values


def _over_batches(
    context: StageContext,
    name: str,
    rollouts: list[Rollout],
    traits: ModelTraits,
    score: Callable[[PackedBatch], tuple[Tensor, ...]],
) -> list[list[Tensor]]:
    """What `score` gives for packed rollouts, [T] each, as [R] float32 on the CPU for each rollout."""
    batches = plan_batches(
        traits,
        rollouts,
        token_budget=context.config.logprob.token_budget,
        share_prompt=context.config.update.share_prompt,
    )
    scored: dict[int, list[Tensor]] = {}
    with torch.inference_mode():
        for batch in progress(batches, len(batches), f"{context.title}: {name}", "batches"):
            parts = [torch.split(tokens.cpu(), batch.lengths) for tokens in score(batch)]
            scored |= {index: [part[at] for part in parts] for at, index in enumerate(batch.order)}
    for index, rollout in enumerate(rollouts):
        if not all(bool(tokens.isfinite().all()) for tokens in scored[index]):
            what = "values" if name == "critic" else "logprobs"
            raise StageError(f"rollout {rollout.sample_id}: its {what} under the {name} are not finite")
    return [list(tokens) for tokens in zip(*(scored[index] for index in range(len(rollouts))), strict=True)]


def _dtype(context: StageContext) -> torch.dtype:
    """Compute type of the layers."""
    return torch.bfloat16 if context.config.model.dtype == "bfloat16" else torch.float32


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("logprob")
