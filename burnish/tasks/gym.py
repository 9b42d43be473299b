"""Procedural tasks of the package reasoning-gym, scored by its own `score_answer`.

An entry is remembered as seed and index, not as data: entries hold Python objects, and the generator makes the same
one again.
"""

import difflib
from collections.abc import Iterator
from typing import Any

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt
from burnish.tasks.items import Item, divide

# Entries a task may be drawn from: generators are lazy, so a large number costs nothing.
_SIZE = 1_000_000


def load(config: TaskConfig, seed: int) -> list[Prompt]:
    """Prompts of the dataset after the colon; `params` go to its generator. Raises ConfigError."""
    name = config.source.partition(":")[2]
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ConfigError(
            f"tasks.source is {config.source!r}: the package reasoning-gym is not installed; pip install burnish[tasks]"
        ) from None
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean 'reasoning_gym:{nearest[0]}'?" if nearest else f"it has {len(DATASETS)}, e.g. chain_sum"
        raise ConfigError(f"tasks.source is {config.source!r}: reasoning-gym has no dataset {name!r}; {hint}")
    reserved = {"seed", "size"} & set(config.params)
    if reserved:
        raise ConfigError(f"task {config.title!r}: params.{reserved.pop()} is set by the run's seed and the sizes")
    try:
        dataset = reasoning_gym.create_dataset(name, seed=seed, size=_SIZE, **config.params)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"task {config.title!r}: params do not fit {name}: {error}") from None
    return divide(_items(dataset, name, config.params, seed), config, f"reasoning-gym's {name} with these params")


def _items(dataset: Any, name: str, params: dict[str, Any], seed: int) -> Iterator[Item]:
    for index in range(_SIZE):
        entry = dataset[index]
        verifier = {
            "kind": "reasoning_gym",
            "dataset": name,
            "params": params,
            "seed": seed,
            "size": _SIZE,
            "index": index,
        }
        answer = entry.get("answer")
        yield Item(
            [{"role": "user", "content": entry["question"]}],
            verifier,
            demonstration=answer if isinstance(answer, str) else None,
        )
