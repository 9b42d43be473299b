"""From a folder to a model and back: safetensors only, no network, no code out of the model's files.

`resolve_base_model` turns what a user writes in `model.path` into such a folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.models.lora import ADAPTER_FOLDER, has_adapter, load_adapter, merge_adapter, require_adapter
from burnish.models.packaged import PACKAGED, packaged_model

# Progress and errors are said by the stages.
_logging: Any = transformers.utils.logging
_logging.disable_progress_bar()
_logging.set_verbosity_error()

# What a policy is made of. Pickled weights are left behind; Python files come only with trust_remote_code.
_MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


class LoadedPolicy(NamedTuple):
    """A policy in memory; unpacks as (model, tokenizer, eos_token_ids)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: frozenset[int]


def load_policy(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    merge: bool = False,
) -> LoadedPolicy:
    """The causal language model in `folder`, in eval mode, with its tokenizer and every id that ends a sequence.

    An adapter in the folder works beside the weights, as it was trained, or, with `merge`, is folded into them (in
    float32). Raises ContractError when the folder holds no safetensors model or nothing ever ends a sequence.
    """
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ContractError(f"policy folder {str(folder)!r} needs config.json and *.safetensors files")
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32 if has_adapter(folder) else dtype,
        attn_implementation=attention,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
    )
    _settle_tied_head(model)
    if has_adapter(folder):
        load_adapter(model, folder)
        if merge:
            merge_adapter(model)
        # Not the buffers: rotary frequencies are float32 in every model.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    return LoadedPolicy(model.to(device).eval(), tokenizer, read_eos_token_ids(folder, tokenizer))


def load_trainable(folder: Path, model: ModelConfig, *, device: torch.device | str, seed: int) -> LoadedPolicy:
    """The policy in `folder` in float32, such that what `model.lora` says is trainable: an adapter, or all weights.

    `seed` is that of a new adapter. Raises ConfigError when the policy's adapter is another one.
    """
    policy = load_policy(
        folder,
        device=device,
        attention=model.attention,
        trust_remote_code=model.trust_remote_code,
        merge=not model.lora.rank,
    )
    if model.lora.rank:
        require_adapter(policy.model, folder, model.lora, seed=seed)
    return policy


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`, without a look at the network."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)


def read_eos_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a sequence: those of the generation config (or else the model's) and the tokenizer's.

    Raises ContractError when there is none.
    """
    source = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).is_file())
    listed: Any = json.loads(source.read_text("utf-8")).get("eos_token_id")
    tokens = [*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id]
    ids = frozenset(int(token) for token in tokens if token is not None)
    if not ids:
        raise ContractError(
            f"policy folder {str(folder)!r} names no end-of-sequence token; set eos_token_id in generation_config.json"
        )
    return ids


def save_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write weights, configuration, generation config and tokenizer into `folder`; equal weights give equal bytes.

    `weights`: the full state dict, for a model whose own is spread over several processes.
    """
    _settle_tied_head(model)
    model.save_pretrained(folder, state_dict=weights, max_shard_size="2GB")
    tokenizer.save_pretrained(folder)
    # safetensors writes files that only their owner may read; a cache folder is shared between users.
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)


def copy_policy(source: Path, folder: Path, *, trust_remote_code: bool = False, adapter: bool = True) -> None:
    """Copy the policy in `source` into `folder` unchanged, leaving everything behind that a policy is not made of."""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in (*_MODEL_FILES, "*.py") if trust_remote_code else _MODEL_FILES:
        for path in source.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    if adapter and has_adapter(source):
        copy_policy(source / ADAPTER_FOLDER, folder / ADAPTER_FOLDER)


def resolve_base_model(model: ModelConfig, *, seed: int, scratch: Path, cache: Path | None = None) -> Path:
    """The folder of the model that `model.path` names; `char` is made from `seed` in the folder `scratch`.

    Raises ConfigError, naming the value and what is accepted.
    """
    if model.path == "char":
        from burnish.models.char import make_char_model

        return make_char_model(scratch / "char", layers=model.layers, width=model.width, seed=seed)
    if model.path in PACKAGED:
        return packaged_model(model.path, cache)
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise ConfigError(f"model.path is {model.path!r}: that folder lacks config.json or *.safetensors files")
        return folder
    return _download(model)


def _download(model: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [*_MODEL_FILES, "*.py"] if model.trust_remote_code else list(_MODEL_FILES)
    try:
        # What is cached answers first: a finished download never waits for the network again.
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        known = ", ".join((*PACKAGED, "char"))
        raise ConfigError(
            f"model.path is {model.path!r}: neither a packaged name ({known}) nor a local folder, "
            f"and the Hugging Face hub did not give it ({reason})"
        ) from None


def _settle_tied_head(model: PreTrainedModel) -> None:
    """Make the file say what the model is: a head that has its own weights must not be dropped as tied."""
    causal: Any = model
    head, embedding = causal.get_output_embeddings(), causal.get_input_embeddings()
    if head is None or not causal.config.tie_word_embeddings or head.weight is embedding.weight:
        return
    if torch.equal(head.weight, embedding.weight):
        causal.tie_weights()
    else:
        causal.config.tie_word_embeddings = False
