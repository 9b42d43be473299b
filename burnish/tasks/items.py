"""From a source's items to the prompts of a task: held-out ones first, so that nothing trained on is among them.

The same seed gives the same split, and a different `train_size` leaves the held-out prompts as they were.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt, Split


@dataclass(frozen=True)
class Item:
    """A question before it belongs to a split."""

    prompt: str | list[dict[str, str]]
    """Chat turns, or the raw text to continue."""
    verifier: dict[str, Any]
    demonstration: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What decides whether two items ask the same: the text without case and spacing."""
        text = self.prompt if isinstance(self.prompt, str) else json.dumps(self.prompt, ensure_ascii=False)
        return " ".join(text.casefold().split())


def distinct(items: Iterable[Item]) -> Iterator[Item]:
    """Each question once. Ends after a long stretch without a new one, so an endless source may run dry."""
    seen: set[str] = set()
    idle = 0
    for item in items:
        if item.content in seen:
            idle += 1
            if idle > 1000 + 10 * len(seen):
                return
            continue
        idle = 0
        seen.add(item.content)
        yield item


def divide(items: Iterable[Item], config: TaskConfig, where: str = "") -> list[Prompt]:
    """The task's prompts out of `items`, which must come in an order that depends on the seed alone.

    Demonstrations are taken from the far end, so they meet training prompts only where there are too few.
    Raises ConfigError when there are not enough distinct items.
    """
    wanted = config.eval_size + config.train_size + config.sft_size
    pool = list(itertools.islice(distinct(items), wanted))
    held_out, rest = pool[: config.eval_size], pool[config.eval_size :]
    for size, name in ((config.train_size, "train_size"), (config.sft_size, "sft_size")):
        if len(rest) < size:
            raise ConfigError(
                f"task {config.title!r}: {name} {size} beside eval_size {config.eval_size} needs "
                f"{size + config.eval_size} different prompts, {where or 'the source'} has {len(pool)}; "
                f"set {name} to at most {max(0, len(pool) - config.eval_size)}, or eval_size lower"
            )
    train, sft = rest[: config.train_size], rest[len(rest) - config.sft_size :]
    return prompts_of({"train": train, "eval": held_out, "sft": sft}, config)


def prompts_of(splits: dict[Split, list[Item]], config: TaskConfig) -> list[Prompt]:
    """One Prompt an item. Raises ConfigError for an sft item that has nothing to imitate."""
    found = []
    for split, items in splits.items():
        for item in items:
            if split == "sft" and item.demonstration is None:
                raise ConfigError(
                    f"task {config.title!r}: sft_size is {config.sft_size} but its prompts have no demonstrations; "
                    "set sft_size: 0, or give rows a `demonstration`"
                )
            chat = None if isinstance(item.prompt, str) else item.prompt
            found.append(
                Prompt(
                    prompt_id=_prompt_id(config.title, split, item),
                    task=config.title,
                    split=split,
                    messages=chat,
                    text=item.prompt if isinstance(item.prompt, str) else None,
                    verifier=item.verifier,
                    demonstration=item.demonstration if split == "sft" else None,
                    metadata=item.metadata,
                )
            )
    return found


def _prompt_id(title: str, split: Split, item: Item) -> str:
    # An sft row may ask what a training row asks; the mark keeps ids unique in a file.
    digest = hashlib.sha256(json.dumps([title, item.content], ensure_ascii=False).encode()).hexdigest()[:16]
    return f"sft-{digest}" if split == "sft" else digest
