"""Low-rank adapters on a policy: PEFT's layers in memory, PEFT's two files in the policy's `adapter` folder.

The base model's files beside them never change, so a policy of a LoRA run costs the store its adapter alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.contracts.config import LoraConfig
from burnish.contracts.errors import ConfigError, ContractError

ADAPTER_FOLDER = "adapter"
_CONFIG_FILE, _WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_EVERY_LINEAR = "all-linear"
# PEFT's name of a parameter in memory and in the file: `<layer>.lora_A.default.weight` is
# `base_model.model.<layer>.lora_A.weight`.
_PREFIX, _IN_MEMORY, _IN_FILE = "base_model.model.", ".default.weight", ".weight"
# Kinds of adapters that PEFT knows and the rest of this system does not.
_FOREIGN = (
    "use_dora", "use_rslora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out",
    "layers_to_transform", "trainable_token_indices",
)  # fmt: skip


def has_adapter(policy: Path) -> bool:
    """Whether the policy in this folder is a base model with an adapter."""
    return (policy / ADAPTER_FOLDER).is_dir()


def read_adapter_settings(policy: Path) -> LoraConfig:
    """Rank, alpha and targets of the adapter in the folder `policy`.

    Raises ContractError when it is of another kind, incomplete or pickled.
    """
    folder = policy / ADAPTER_FOLDER
    if not (folder / _WEIGHTS_FILE).is_file():
        found = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise ContractError(f"adapter: {_WEIGHTS_FILE} is not there, but {found}; only safetensors are read")
    try:
        config = json.loads((folder / _CONFIG_FILE).read_text("utf-8"))
        foreign = [name for name in _FOREIGN if config.get(name)]
        if config["peft_type"] != "LORA" or config.get("bias", "none") != "none" or foreign:
            raise ValueError(f"{foreign[0] if foreign else 'peft_type or bias'} is not of a plain LoRA adapter")
        return LoraConfig(rank=config["r"], alpha=config["lora_alpha"], targets=config["target_modules"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"adapter: {_CONFIG_FILE} cannot be used: {' '.join(str(error).split())}") from None


def load_adapter(model: PreTrainedModel, policy: Path) -> None:
    """Put the adapter in the folder `policy` on `model`, beside its weights.

    Raises ContractError when it does not belong to this model.
    """
    try:
        _inject(model, read_adapter_settings(policy))
    except ConfigError as error:
        raise ContractError(f"adapter: {_CONFIG_FILE}: {error}") from None
    try:
        tensors = load_file(policy / ADAPTER_FOLDER / _WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise ContractError(f"adapter: {_WEIGHTS_FILE} cannot be read: {error}") from None
    for name, parameter in adapter_parameters(model).items():
        tensor = tensors.pop(name, None)
        if tensor is None or tensor.shape != parameter.shape:
            found = "nothing" if tensor is None else list(tensor.shape)
            raise ContractError(
                f"adapter: {name} is {found} and must be {list(parameter.shape)}; the adapter is of another base model"
            )
        parameter.detach().copy_(tensor)
    if tensors:
        raise ContractError(f"adapter: {sorted(tensors)[0]} has no place in this model; it is of another base model")


def require_adapter(model: PreTrainedModel, policy: Path, settings: LoraConfig, *, seed: int) -> None:
    """Make the adapter that `settings` describe the one thing to train: that of the folder `policy`, or a new one.

    A new adapter changes nothing yet: A is random (from `seed`), B is zero. Raises ConfigError when the policy's
    adapter has another rank, alpha or targets, or the model no layers of these names.
    """
    if not has_adapter(policy):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _inject(model, settings)
        return
    found = read_adapter_settings(policy)
    wanted = settings.model_copy(update={"targets": _targets(model, settings.targets)})
    for field in ("rank", "alpha", "targets"):
        if getattr(found, field) != getattr(wanted, field):
            raise ConfigError(
                f"model.lora.{field} is {getattr(wanted, field)}, but the policy's adapter has "
                f"{getattr(found, field)}; set it back or start from sft"
            )


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter's weights, by their name in a PEFT file; empty without an adapter."""
    return {
        f"{_PREFIX}{name.removesuffix(_IN_MEMORY)}{_IN_FILE}": parameter
        for name, parameter in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }


def save_adapter(model: PreTrainedModel, tensors: Mapping[str, Tensor], policy: Path) -> None:
    """Write `tensors`, named as `adapter_parameters` names them, into the folder `policy`; equal ones, equal bytes."""
    folder = policy / ADAPTER_FOLDER
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / _WEIGHTS_FILE, {"format": "pt"})
    # safetensors writes files that only their owner may read; a cache folder is shared between users.
    (folder / _WEIGHTS_FILE).chmod(0o644)
    peft: Any = model
    (made,) = peft.peft_config.values()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": made.r,
        "lora_alpha": made.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(made.target_modules),
    }
    (folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def merge_adapter(model: PreTrainedModel) -> None:
    """Fold the adapter into the weights, in their own type, and take its layers away; all weights are trainable."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            layer.merge()
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, layer.get_base_layer())
    model.requires_grad_(True)


def _inject(model: PreTrainedModel, settings: LoraConfig) -> None:
    """Adapter layers around the targets; nothing else is trainable afterwards."""
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    targets = _targets(model, settings.targets)
    # Declared as a whole number in PEFT, and only ever divided by the rank.
    alpha: Any = settings.alpha
    config = PeftConfig(r=settings.rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    inject_adapter_in_model(config, model)
    adapted: Any = model
    adapted.peft_config = {"default": config}


def _targets(model: PreTrainedModel, wanted: list[str]) -> list[str]:
    """The last parts of the names of the layers to adapt, sorted."""
    causal: Any = model
    head = causal.get_output_embeddings()
    linear = {
        # With an adapter in place, the layer's own weights are one step further down.
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and ".lora_" not in name
    }
    if wanted == [_EVERY_LINEAR]:
        return sorted(linear)
    unknown = sorted(set(wanted) - linear)
    if unknown:
        raise ConfigError(
            f"model.lora.targets names {unknown[0]!r}, which is no layer here; there are {', '.join(sorted(linear))}"
        )
    return sorted(set(wanted))
