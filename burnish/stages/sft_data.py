"""Demonstrations out of the file that `sft.data` names; a wrong line is one error that names it.

No torch here: validate reads the file too, so that a change of its content is a change of the run's prompts.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt

SFT_DATA = "sft.data"
"""Task name of the rows that come from the file."""


def read_demonstrations(path: Path) -> list[Prompt]:
    """The rows of a jsonl: `messages` whose assistant turns are each trained once, or `prompt` and `response`.

    Raises ConfigError naming the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"sft.data is {str(path)!r}: cannot be read: {error}") from None
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompts.extend(_row(path.name, number, line))
    if not prompts:
        raise ConfigError(f"sft.data is {str(path)!r}: it holds no rows")
    return prompts


def _row(name: str, number: int, line: str) -> Iterator[Prompt]:
    wrong = f"sft.data: {name} line {number}"
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{wrong}: not JSON: {error}") from None
    place = f"{name}:{number:07d}"
    if not isinstance(row, dict) or ("messages" in row) == ("prompt" in row):
        raise ConfigError(f"{wrong}: give `messages`, or `prompt` and `response`")
    if "prompt" in row:
        if not (isinstance(row["prompt"], str) and isinstance(row.get("response"), str) and row["response"]):
            raise ConfigError(f"{wrong}: `prompt` and `response` must be texts, and the response not empty")
        yield Prompt(place, SFT_DATA, "sft", None, row["prompt"], {}, row["response"])
        return
    turns = row["messages"]
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        for turn in turns
    ):
        raise ConfigError(f"{wrong}: `messages` must be a list of {{role, content}} texts")
    # Each assistant turn is an example behind the turns before it: the context in which it will be sampled.
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant" and index and turn["content"]]
    if not answers:
        raise ConfigError(f"{wrong}: no assistant turn to learn from")
    for index in answers:
        yield Prompt(f"{place}:{index:03d}", SFT_DATA, "sft", turns[:index], None, {}, turns[index]["content"])
