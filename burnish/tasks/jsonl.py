"""Prompts from a file of JSON lines; a wrong line is one error that names it.

A row holds `prompt` or `messages`; `answer`, or `tests` with the other fields of `sandbox.spec.Spec`; and if wanted
`verifier` (exact or math), `demonstration`, `split` (train, eval or sft) and `task`, which goes into the metadata.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt, Split
from burnish.contracts.section import Section
from burnish.tasks.items import Item, distinct, divide, prompts_of
from burnish.tasks.load import read_params
from sandbox.spec import Spec, SpecError, parse_spec

_SPEC = tuple(field.name for field in fields(Spec))
_KEYS = {"prompt", "messages", "answer", "verifier", "demonstration", "split", "task", *_SPEC}
_ROLES = ("system", "user", "assistant")


class JsonlParams(Section):
    style: Literal["chat", "raw"] = "chat"
    """What a `prompt` string is: a user's message, or raw text to continue."""
    verifier: Literal["exact", "math"] = "exact"
    """How an `answer` is compared in rows that do not say."""


def load(config: TaskConfig, seed: int) -> list[Prompt]:
    """Rows with a `split` go there; rows without are shuffled by the seed and divided by the task's sizes."""
    params = read_params(config, JsonlParams)
    path = Path(config.source.partition(":")[2])
    placed: dict[Split, list[Item]] = {split: [] for split in get_args(Split)}
    open_items: list[Item] = []
    owner: dict[str, tuple[int, bool]] = {}  # content -> line, held out?
    for number, split, item in _rows(path, params):
        if split is None:
            open_items.append(item)
            continue
        line, held_out = owner.setdefault(item.content, (number, split == "eval"))
        if held_out != (split == "eval"):
            raise _wrong(path, number, f"asks the same as line {line}; a prompt cannot be both held out and trained on")
        placed[split].append(item)
    if any(placed.values()):
        if open_items:
            raise ConfigError(f"{path.name}: some rows have a `split` and some do not; give it to all rows or to none")
        return prompts_of({split: _cut(items, split, config, seed) for split, items in placed.items()}, config)
    open_items = list(distinct(open_items))
    random.Random(f"jsonl/{seed}").shuffle(open_items)
    return divide(open_items, config, path.name)


def _cut(items: list[Item], split: Split, config: TaskConfig, seed: int) -> list[Item]:
    size = {"train": config.train_size, "eval": config.eval_size, "sft": config.sft_size}[split]
    found = list(distinct(items))
    if len(found) < size:
        raise ConfigError(
            f"task {config.title!r}: {split}_size is {size}, the file has {len(found)} different {split} rows; "
            f"set {split}_size to at most {len(found)}"
        )
    random.Random(f"jsonl/{seed}/{split}").shuffle(found)
    return found[:size]


def _rows(path: Path, params: JsonlParams) -> Iterator[tuple[int, Split | None, Item]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, *_parse(path, number, line, params)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tasks.source names the file {str(path)!r}: cannot be read: {error}") from None


def _parse(path: Path, number: int, line: str, params: JsonlParams) -> tuple[Split | None, Item]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, number, f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _wrong(path, number, "must be an object")
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise _wrong(path, number, f"unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    split, demonstration, task = row.get("split"), row.get("demonstration"), row.get("task")
    if split is not None and split not in get_args(Split):
        raise _wrong(path, number, f"split is {split!r}; use train, eval or sft")
    for key, value in (("demonstration", demonstration), ("task", task)):
        if value is not None and not isinstance(value, str):
            raise _wrong(path, number, f"{key} must be a string")
    if split == "sft" and demonstration is None:
        raise _wrong(path, number, "an sft row needs a `demonstration`")
    item = Item(
        prompt=_prompt(path, number, row, params),
        verifier=_verifier(path, number, row, params),
        demonstration=demonstration,
        metadata={} if task is None else {"task": task},
    )
    return split, item


def _prompt(path: Path, number: int, row: dict[str, Any], params: JsonlParams) -> str | list[dict[str, str]]:
    if ("prompt" in row) == ("messages" in row):
        raise _wrong(path, number, "give exactly one of prompt and messages")
    if "prompt" in row:
        if not isinstance(row["prompt"], str) or not row["prompt"]:
            raise _wrong(path, number, "prompt must be a string that is not empty")
        return row["prompt"] if params.style == "raw" else [{"role": "user", "content": row["prompt"]}]
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise _wrong(path, number, "messages must be a list of at least one turn")
    for turn in messages:
        fine = isinstance(turn, dict) and set(turn) == {"role", "content"} and isinstance(turn["content"], str)
        if not fine or turn["role"] not in _ROLES:
            raise _wrong(path, number, f"each turn is {{role, content}} with a role of {', '.join(_ROLES)}")
    if messages[-1]["role"] == "assistant":
        raise _wrong(path, number, "the last turn is the assistant's; leave its answer to `demonstration`")
    return messages


def _verifier(path: Path, number: int, row: dict[str, Any], params: JsonlParams) -> dict[str, Any]:
    if ("answer" in row) == ("tests" in row):
        raise _wrong(path, number, "give exactly one of answer and tests")
    if "tests" in row:
        spec: dict[str, Any] = {key: row[key] for key in _SPEC if key in row}
        try:
            parse_spec(spec)
        except SpecError as error:
            raise _wrong(path, number, str(error)) from None
        return {"kind": "code", **spec}
    answer, kind = row["answer"], row.get("verifier", params.verifier)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise _wrong(path, number, "answer must be a number or a string that is not empty")
    if kind not in ("exact", "math"):
        raise _wrong(path, number, f"verifier is {kind!r}; use exact or math")
    return {"kind": kind, "answer": str(answer)}


def _wrong(path: Path, number: int, what: str) -> ConfigError:
    return ConfigError(f"{path.name}, line {number}: {what}")
