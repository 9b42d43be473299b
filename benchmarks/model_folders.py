"""The models of the comparison: a policy that never ends a sequence, and a reference with other weights.

Usage: python model_folders.py MODEL FOLDER, with MODEL a value of `model.path`. Prints nothing but errors.
"""

import sys
from pathlib import Path

import torch

from burnish.contracts.config import ModelConfig
from burnish.models.load import load_policy, resolve_base_model, save_policy

NEVER = "<|never|>"


def make(path: str, folder: Path) -> None:
    """Write `policy` and `reference` into `folder`; `path` is a value of `model.path`."""
    base = resolve_base_model(ModelConfig(path=path), seed=0, scratch=folder / "scratch")
    model, tokenizer, _ = load_policy(base)
    # A token of the tokenizer alone, behind the last row of the head: no sampler can draw it, so every completion
    # has exactly the asked-for length, on both sides and without a sampling option that one of them lacks.
    tokenizer.add_special_tokens({"eos_token": NEVER})
    assert tokenizer.eos_token_id >= model.get_output_embeddings().weight.shape[0]
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    save_policy(model, tokenizer, folder / "policy")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)
    save_policy(model, tokenizer, folder / "reference")


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
