"""The value model of PPO: a language model's layers and a linear head that says how much reward is still to come.

A token's value is read from the state that predicts it, before the token is known, so completions share their prompt
here as they do for logprobs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from burnish.contracts.algorithm import CriticConfig
from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.models.backbone import completion_states
from burnish.models.grouping import PackedBatch
from burnish.models.load import load_policy, load_tokenizer, resolve_base_model
from burnish.models.lora import has_adapter

CRITIC_FILE = "critic.json"
VALUE_HEAD_FILE = "value_head.safetensors"

# The one-output head of a sequence classifier, which is what a reward model is.
_REWARD_HEAD = "score.weight"


class Critic(torch.nn.Module):
    """Layers of its own and a value head."""

    def __init__(self, layers: PreTrainedModel, head: torch.nn.Linear) -> None:
        super().__init__()
        self.layers = layers
        self.head = head

    def forward(self, batch: PackedBatch, dtype: torch.dtype = torch.float32) -> Tensor:
        """[T] float32: the value of each completion token, in `batch`'s order."""
        return head_values(self.head, completion_states(self.layers, batch, dtype))


@dataclass(frozen=True)
class CriticOrigin:
    """What a critic is made of before its layers are in memory."""

    head: torch.nn.Linear
    layers: Path | None
    """Folder of the layers. None: the policy's own, which the critic shares."""

    @property
    def silent(self) -> bool:
        """The head is zero, and so is every value: nothing has to be run to know them."""
        return not any(bool(parameter.any()) for parameter in self.head.parameters())


def head_values(head: torch.nn.Linear, states: Tensor) -> Tensor:
    """[T] float32 from states [T, D]."""
    values: Tensor = head(states.float()).squeeze(-1)
    return values


def find_critic(
    artifact: Path, policy: Path, settings: CriticConfig, model: ModelConfig, scratch: Path
) -> CriticOrigin:
    """The critic in the folder `artifact`; where that is empty, the one that `settings` say to start from.

    policy: the input policy's folder; model: how model files are read; scratch: for files of a model made on the way.
    Raises ContractError when the artifact does not fit the settings, ConfigError when `settings.init` cannot be used.
    """
    if (artifact / CRITIC_FILE).is_file():
        return _read_critic(artifact, settings)
    if settings.shared:
        return CriticOrigin(_new_head(_width(policy, model)), None)
    if settings.init == "policy":
        return CriticOrigin(_new_head(_width(policy, model)), policy)
    folder = _resolve(settings.init, model, scratch)
    _require_same_tokens(folder, policy, settings.init, model)
    return CriticOrigin(_reward_head(folder) or _new_head(_width(folder, model)), folder)


def load_critic(origin: CriticOrigin, model: ModelConfig, device: torch.device | str) -> Critic:
    """The critic of `origin`, which has layers of its own, in eval mode and float32.

    Raises ContractError when the folder does not hold all weights of the layers.
    """
    if origin.layers is None:
        raise ValueError("a critic that shares the policy's layers has none to load")
    if has_adapter(origin.layers):
        policy = load_policy(
            origin.layers, attention=model.attention, trust_remote_code=model.trust_remote_code, merge=True
        )
        merged: Any = policy.model
        return Critic(merged.base_model, origin.head).to(device).eval()
    loaded: Any = AutoModel.from_pretrained(
        origin.layers,
        dtype=torch.float32,
        attn_implementation=model.attention,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=model.trust_remote_code,
        output_loading_info=True,
    )
    layers, report = loaded
    # transformers fills gaps with random numbers; those would be values of nothing.
    if report["missing_keys"]:
        raise ContractError(f"critic: {sorted(report['missing_keys'])[0]} is not among the weights it starts from")
    return Critic(layers, origin.head).to(device).eval()


def save_critic(
    folder: Path, head: torch.nn.Linear, layers: PreTrainedModel | None, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write an artifact that `find_critic` reads; `layers` None where they are the policy's.

    weights: the full state dict of the Critic, where its own is spread over several processes. Equal weights give
    equal bytes.
    """
    if layers is not None:
        layers.save_pretrained(folder, state_dict=_below("layers.", weights), max_shard_size="2GB")
    tensors = _below("head.", weights) or head.state_dict()
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, folder / VALUE_HEAD_FILE)
    (folder / CRITIC_FILE).write_text(json.dumps({"shared": layers is None}), "utf-8")
    # safetensors writes files that only their owner may read; a cache folder is shared between users.
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)


def _below(prefix: str, weights: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
    """The part of a state dict that belongs to one submodule."""
    if weights is None:
        return None
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _read_critic(artifact: Path, settings: CriticConfig) -> CriticOrigin:
    try:
        shared = bool(json.loads((artifact / CRITIC_FILE).read_text("utf-8"))["shared"])
        tensors = load_file(artifact / VALUE_HEAD_FILE)
        head = _new_head(tensors["weight"].shape[1])
        head.load_state_dict(tensors)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, SafetensorError) as error:
        raise ContractError(f"critic: not a readable critic artifact: {' '.join(str(error).split())}") from None
    if shared != settings.shared:
        raise ContractError(
            f"critic: the artifact was made with update.critic.shared={str(shared).lower()}, which is now "
            f"{str(settings.shared).lower()}; set it back or start from sft"
        )
    return CriticOrigin(head, None if shared else artifact)


def _new_head(width: int) -> torch.nn.Linear:
    """Zero, so that every value starts at 0 and the first advantages are plain returns."""
    head = torch.nn.Linear(width, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def _reward_head(folder: Path) -> torch.nn.Linear | None:
    """The head of the reward model in `folder`; None where there is none with a single output."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            if _REWARD_HEAD not in names or file.get_slice(_REWARD_HEAD).get_shape()[0] != 1:
                continue
            weight = file.get_tensor(_REWARD_HEAD).float()
            head = _new_head(weight.shape[1])
            with torch.no_grad():
                head.weight.copy_(weight)
            return head
    return None


def _width(folder: Path, model: ModelConfig) -> int:
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=model.trust_remote_code)
    return int(config.get_text_config().hidden_size)


def _resolve(init: str, model: ModelConfig, scratch: Path) -> Path:
    source = model.model_copy(update={"path": init, "revision": None})
    try:
        return resolve_base_model(source, seed=0, scratch=scratch)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.path", "update.critic.init")) from None


def _require_same_tokens(folder: Path, policy: Path, init: str, model: ModelConfig) -> None:
    """Values of other tokens than the policy's would be noise that looks like values."""
    own, wanted = (
        load_tokenizer(path, trust_remote_code=model.trust_remote_code).get_vocab() for path in (folder, policy)
    )
    if wanted.items() - own.items():
        raise ConfigError(
            f"update.critic.init is {init!r}: its tokenizer is not the policy's; use a model of the same family"
        )
