"""Demonstrations as training examples: which are kept, which are held back, and how they fill optimizer steps.

A demonstration has the shape of a completion, so batches and logprobs are those of the logprob and update stages.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from burnish.contracts.records import Prompt
from burnish.models.chat import render_demonstration


@dataclass(frozen=True)
class Example:
    """A tokenised demonstration: only response_ids, end-of-sequence included, are trained on."""

    input_ids: list[int]
    response_ids: list[int]
    temperature: float = 1.0


@dataclass(frozen=True)
class Examples:
    """What training works on."""

    train: list[Example]
    validation: list[Example]
    too_long: int
    """Demonstrations left out because they exceed the length limit."""


def build_examples(
    tokenizer: PreTrainedTokenizerBase,
    demonstrations: Sequence[Prompt],
    eos_token_ids: frozenset[int],
    *,
    max_length: int,
    validation_fraction: float,
    seed: int,
) -> Examples:
    """Tokenise, leave out rows longer than `max_length` tokens, and hold a seeded share back.

    At least one example is held back when the share is above 0 and there are two or more.
    """
    rendered = [
        Example(*render_demonstration(tokenizer, prompt, eos_token_ids))
        for prompt in sorted(demonstrations, key=lambda prompt: prompt.prompt_id)
    ]
    kept = [example for example in rendered if len(example.input_ids) + len(example.response_ids) <= max_length]
    random.Random(f"{seed}/split").shuffle(kept)
    held_back = 0
    if validation_fraction and len(kept) > 1:
        held_back = min(max(1, round(validation_fraction * len(kept))), len(kept) - 1)
    return Examples(kept[held_back:], kept[:held_back], len(rendered) - len(kept))


def epoch_steps(examples: Sequence[Example], *, batch_size: int, epoch: int, seed: int) -> list[list[Example]]:
    """The examples of each optimizer step of `epoch`: a seeded order, cut into batches; the last may be smaller."""
    order = list(examples)
    random.Random(f"{seed}/epoch/{epoch}").shuffle(order)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
