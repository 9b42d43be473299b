"""Logprobs of sampled tokens under a model: the one computation that the logprob and update stages share.

Both pack their completions with `plan_batches` and score them with `token_logprobs`, so that at equal weights they
see equal numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.backbone import completion_states
from burnish.models.fused_head import head_logprobs
from burnish.models.grouping import Completion, PackedBatch, pack_completions
from burnish.models.probe import ModelTraits

DEFAULT_CHUNK_TOKENS = 512

# A CPU is busy with this many tokens at a time, and adding up gradients costs little beside them; more of them take
# memory and gain nothing.
_CPU_TOKENS = 640


def plan_batches(
    traits: ModelTraits, completions: Sequence[Completion], *, token_budget: int, share_prompt: bool
) -> list[PackedBatch]:
    """Batches for `token_logprobs` that fit `token_budget` padded tokens, prompts shared where the model allows it."""
    longest = max((len(item.input_ids) + len(item.response_ids) for item in completions), default=0)
    return pack_completions(
        completions,
        token_budget=token_budget,
        batch_tokens=min(token_budget, _CPU_TOKENS) if traits.device.type == "cpu" else token_budget,
        share_prompt=share_prompt and traits.may_share(longest),
        attention_cost=traits.attention_cost,
    )


def token_logprobs(
    model: PreTrainedModel,
    batch: PackedBatch,
    *,
    dtype: torch.dtype = torch.float32,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Logprob of each completion token and entropy of its distribution, ([T], [T]) float32 nats, in `batch`'s order.

    Logits are divided by each completion's temperature. `dtype` bfloat16 runs the layers under autocast; logits,
    softmax and entropy are float32 always. Gradients flow from the logprobs, not from the entropies. The model must
    have passed `probe_model`.
    """
    return state_logprobs(model, completion_states(model, batch, dtype), batch, chunk_tokens)


def state_logprobs(
    model: PreTrainedModel, states: Tensor, batch: PackedBatch, chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """The second half of `token_logprobs`, for who also needs the states [T, D]: a value head that shares them."""
    causal: Any = model
    head = causal.get_output_embeddings()
    targets, temperatures = batch.targets.to(states.device), batch.temperatures.to(states.device)
    return head_logprobs(states, head.weight, head.bias, targets, temperatures, chunk_tokens)
