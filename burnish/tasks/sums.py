"""Sums of two small numbers: the smallest task on which a model learns visibly.

As chat for an instruction model, or as raw text such as `3+4=` for the character-level model.
"""

import math
import random
from typing import Literal

from pydantic import Field

from burnish.contracts.config import TaskConfig
from burnish.contracts.records import Prompt
from burnish.contracts.section import Section
from burnish.tasks.items import Item, divide
from burnish.tasks.load import read_params


class SumsParams(Section):
    max_operand: int | None = Field(None, ge=1, le=10_000)
    """Largest operand. Empty: 9, or as much more as the asked number of prompts needs."""
    style: Literal["chat", "raw"] = "chat"
    """`chat`: messages with a short system message. `raw`: the text `3+4=`."""


def load(config: TaskConfig, seed: int) -> list[Prompt]:
    """Every pair of operands is one prompt; held-out pairs are never trained on."""
    params = read_params(config, SumsParams)
    largest = params.max_operand
    if largest is None:
        wanted = config.eval_size + max(config.train_size, config.sft_size)
        largest = max(9, math.isqrt(max(0, wanted - 1)))
    pairs = [(a, b) for a in range(largest + 1) for b in range(largest + 1)]
    random.Random(f"sums/{seed}").shuffle(pairs)
    items = (_item(a, b, params.style) for a, b in pairs)
    return divide(items, config, f"sums up to {largest} + {largest}")


def _item(a: int, b: int, style: str) -> Item:
    answer = str(a + b)
    verifier = {"kind": "exact", "answer": answer}
    if style == "raw":
        return Item(f"{a}+{b}=", verifier, answer)
    messages = [
        {"role": "system", "content": "Answer with the number only."},
        {"role": "user", "content": f"What is {a} + {b}?"},
    ]
    return Item(messages, verifier, answer)
