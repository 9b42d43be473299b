"""A tiny character-level model made from a seed: small enough to learn a task from scratch on one core.

It is saved as an ordinary model folder, so nothing else in the system knows that it is small.
"""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from burnish.contracts.errors import ConfigError
from burnish.models.load import save_policy

_PAD, _EOS, _UNKNOWN = "<pad>", "<eos>", "<unk>"
_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
# The smallest that vLLM has a kernel for.
_HEAD_DIM = 32


def make_char_model(folder: Path, *, layers: int, width: int, seed: int) -> Path:
    """Write a randomly initialised Llama with one token per ASCII character into `folder`; returns `folder`.

    It has no chat template: prompts are raw text. Raises ConfigError when `width` is not a multiple of 32.
    """
    if width % _HEAD_DIM:
        raise ConfigError(f"model.width is {width}: it must be a multiple of {_HEAD_DIM}")
    tokenizer = char_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // _HEAD_DIM,
        num_key_value_heads=width // _HEAD_DIM,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=width**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(model, tokenizer, folder)
    return folder


def char_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character and newline, besides padding, end of sequence and unknown."""
    vocabulary = {token: index for index, token in enumerate([_PAD, _EOS, _UNKNOWN, *_CHARACTERS])}
    wrap: Any = PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped: PreTrainedTokenizerFast = wrap(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_EOS,
        unk_token=_UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    return wrapped
