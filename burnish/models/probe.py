"""What a model's own forward pass says about it, asked with a handful of tokens before anything relies on it.

Model families differ in ways that no list of names keeps up with; a few tiny forward passes settle it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from burnish.contracts.errors import ContractError
from burnish.models.backbone import completion_states
from burnish.models.grouping import pack_completions

# Far above the rounding of a float32 model of any depth, far below the effect of a wrong mask or a forgotten scale.
_TOLERANCE = 1e-2


@dataclass(frozen=True)
class ModelTraits:
    """What packing must know of a model."""

    tree_attention: bool
    """Completions may share their prompt in one row: the model obeys a tree-shaped mask and given positions."""
    window: int | None
    """Longest sequence, in tokens, for which that holds; None: any."""
    attention_cost: float
    """One query-key pair over one token through all matrices, in multiply-adds."""
    device: torch.device

    def may_share(self, longest: int) -> bool:
        """Whether sequences of up to `longest` tokens, prompt included, may share a prompt."""
        return self.tree_attention and (self.window is None or longest <= self.window)


@dataclass(frozen=True)
class _Sample:
    input_ids: list[int]
    response_ids: list[int]
    temperature: float = 1.0


def probe_model(model: PreTrainedModel) -> ModelTraits:
    """Look at `model` once, before training or scoring with it.

    Raises ContractError unless its logits are `hidden @ head.weight.T + head.bias` and nothing more: some families
    cap or scale them after the head, and logprobs computed without that would be wrong in silence.
    """
    causal: Any = model
    _require_linear_head(causal, int(causal.get_input_embeddings().weight.shape[0]))
    return probe_layers(model)


def probe_layers(model: PreTrainedModel) -> ModelTraits:
    """What packing must know of `model`, which needs no head of its own (a critic's has none)."""
    causal: Any = model
    vocabulary = int(causal.get_input_embeddings().weight.shape[0])
    config = causal.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    # A mask handed to transformers replaces the window's own, which is right only where the window never cuts; linear
    # attention and convolutions have no mask at all.
    expressible = not kinds - {"full_attention", "sliding_attention"} and _obeys_a_tree(model, vocabulary)
    embedding = causal.get_input_embeddings().weight.numel()
    matrices = sum(parameter.numel() for parameter in causal.base_model.parameters()) - embedding
    cost = 2.0 * int(config.num_hidden_layers) * int(config.hidden_size) / max(matrices, 1)
    return ModelTraits(expressible, window, cost, model.device)


def _require_linear_head(causal: Any, vocabulary: int) -> None:
    head, layers, name = causal.get_output_embeddings(), causal.base_model, type(causal).__name__
    if head is None or layers is causal:
        raise ContractError(f"model {name} has no output head of its own; use a causal language model")
    tokens = torch.tensor([[3, 1, 4, 1, 5]], device=causal.device) % vocabulary
    with torch.no_grad():
        own = causal(input_ids=tokens, use_cache=False).logits
        hidden = layers(input_ids=tokens, use_cache=False).last_hidden_state
        linear = torch.nn.functional.linear(hidden, head.weight, head.bias)
    if own.shape != linear.shape or not _close(own, linear):
        raise ContractError(
            f"model {name} does more than a matrix product after its last layer (a logit cap or scale), which the "
            "trainer does not support; use another base model"
        )


def _obeys_a_tree(model: PreTrainedModel, vocabulary: int) -> bool:
    prompt = [token % vocabulary for token in (3, 1, 4, 1, 5)]
    samples = [_Sample(prompt, [token % vocabulary for token in answer]) for answer in ((9, 2, 6, 5), (3, 5, 8, 9))]
    try:
        shared, alone = (_states(model, samples, share) for share in (True, False))
    except (TypeError, ValueError, RuntimeError):
        # A forward pass that takes no positions or no four-dimensional mask says no in its own way.
        return False
    return _close(shared, alone)


def _states(model: PreTrainedModel, samples: list[_Sample], share: bool) -> torch.Tensor:
    """[T, D] in the order of `samples`."""
    (batch,) = pack_completions(samples, token_budget=1024, share_prompt=share)
    with torch.no_grad():
        parts = torch.split(completion_states(model, batch), batch.lengths)
    return torch.cat([part for _, part in sorted(zip(batch.order, parts, strict=True), key=lambda pair: pair[0])])


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    scale = expected.float().abs().max().clamp(min=1e-6)
    return bool((found.float() - expected.float()).abs().max() <= _TOLERANCE * scale)
