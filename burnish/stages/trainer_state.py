"""The trainer's memory between rounds: AdamW's moments as safetensors and the step counter as JSON; never pickle.

The learning rate is a function of the step and every seed is derived, so nothing else has to be remembered.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.contracts.errors import ContractError

_STEP_FILE = "state.json"
_MOMENTS_FILE = "optimizer.safetensors"
CRITIC_MOMENTS_FILE = "critic_optimizer.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def build_optimizer(
    model: torch.nn.Module, *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW whose decay leaves biases and norms alone; fused, so that a step needs no memory of its own."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=betas, fused=True)


def load_trainer_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put the policy's moments in `folder` into `optimizer`; returns the number of steps behind.

    Raises ContractError when the state is unreadable or belongs to another model.
    """
    try:
        step = int(json.loads((folder / _STEP_FILE).read_text("utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"trainer state: {_STEP_FILE} does not hold a step: {error}") from None
    load_moments(folder / _MOMENTS_FILE, model, optimizer)
    return step


def load_moments(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the moments in the file `path` into `optimizer`; without a file there are none yet.

    The file stays mapped: pages are read when the optimizer first touches them and copied when it writes.
    Raises ContractError when they belong to another model.
    """
    if not path.exists():
        return
    tensors = load_file(path)
    for name, parameter in model.named_parameters():
        found = {key: tensors.pop(f"{name}.{key}") for key in _MOMENTS if f"{name}.{key}" in tensors}
        if not found:
            continue
        if set(found) != set(_MOMENTS) or found["exp_avg"].shape != parameter.shape:
            raise ContractError(f"trainer state: {path.name}: moments of {name} do not fit the model's weights")
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}
    if tensors:
        raise ContractError(f"trainer state: {path.name}: {sorted(tensors)[0]} is not a parameter of this model")


def save_trainer_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the policy's moments and the step into `folder`; equal states give equal bytes."""
    save_moments(folder / _MOMENTS_FILE, model, optimizer)
    (folder / _STEP_FILE).write_text(json.dumps({"step": step}), "utf-8")


def save_moments(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the moments to `path`; no file where there are none."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{name}.{key}": state[key].cpu().contiguous() for key in _MOMENTS if key in state}
    if tensors:
        save_file(tensors, path)
