"""A model's layers over a packed batch, up to the states that predict completion tokens; the head is not run here."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.grouping import PackedBatch


def completion_states(model: PreTrainedModel, batch: PackedBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """[T, D]: the last layer's output at the positions that predict the completion tokens."""
    device = model.device
    layers: Any = model.base_model
    mask = batch.attention_mask(device)
    # Plain causal rows go without mask and positions: torch then takes its causal kernel.
    tree = {} if mask is None else {"attention_mask": mask, "position_ids": batch.position_ids.to(device)}
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = layers(input_ids=batch.input_ids.to(device), use_cache=False, **tree)
    states: Tensor = output.last_hidden_state
    return states.flatten(0, 1).index_select(0, batch.predictors.to(device))
