"""The trainer's memory between rounds: AdamW's moments as safetensors and a few numbers as JSON; never pickle.

Learning rates and scheduled weights are functions of the step and every seed is derived; what follows a measurement
instead is a number kept here.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.contracts.errors import ContractError
from burnish.models.parallel import placed_like, whole

_STATE_FILE = "state.json"
MOMENTS_FILE = "optimizer.safetensors"
CRITIC_MOMENTS_FILE = "critic_optimizer.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class TrainerState:
    """The numbers that a round leaves to the next."""

    step: int = 0
    """Optimizer steps behind, skipped ones included."""
    kl_coef: float | None = None
    """What the adaptive controller has made of update.kl.coef; None before its first round, or without it."""
    lr_scale: float = 1.0
    """What schedule `kl_adaptive` multiplies the learning rate by."""


def build_optimizer(
    model: torch.nn.Module, *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW whose decay leaves biases and norms alone; fused, so that a step needs no memory of its own."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=betas, fused=True)


def read_trainer_state(folder: Path) -> TrainerState:
    """The numbers in `folder`. Raises ContractError when they are not there."""
    try:
        found = json.loads((folder / _STATE_FILE).read_text("utf-8"))
        kl_coef = found.get("kl_coef")
        return TrainerState(
            int(found["step"]), None if kl_coef is None else float(kl_coef), float(found.get("lr_scale", 1.0))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"trainer state: {_STATE_FILE} does not hold a step: {error}") from None


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
        optimizer.state[parameter] = {key: placed_like(parameter, value) for key, value in found.items()}
    if tensors:
        raise ContractError(f"trainer state: {path.name}: {sorted(tensors)[0]} is not a parameter of this model")


def save_moments(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, write: bool = True) -> None:
    """Write the moments to `path`; no file where there are none. Equal moments give equal bytes.

    Weights may be spread over ranks: then all of them must call this, and one of them must `write`.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        moments = optimizer.state.get(parameter, {})
        tensors |= {f"{name}.{key}": whole(moments[key]).contiguous() for key in _MOMENTS if key in moments}
    if tensors and write:
        save_file(tensors, path)


def write_trainer_state(folder: Path, state: TrainerState) -> None:
    """Write the numbers into `folder`."""
    (folder / _STATE_FILE).write_text(json.dumps(dataclasses.asdict(state)), "utf-8")
