"""The table of task sources and the one way into it."""

import difflib
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt
from burnish.contracts.section import Section

SOURCES = ("sums", "reasoning_gym", "code", "jsonl")
_WITH_ARGUMENT = {"reasoning_gym": "reasoning_gym:NAME", "jsonl": "jsonl:PATH"}

ParamsT = TypeVar("ParamsT", bound=Section)


def load_task(config: TaskConfig, seed: int) -> list[Prompt]:
    """The prompts of one task: `train_size` train, `eval_size` eval and `sft_size` sft rows, the same for a seed.

    No eval prompt is among the others, by content. Raises ConfigError naming the field and the fix.
    """
    name, _, argument = config.source.partition(":")
    if name not in SOURCES:
        nearest = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
        forms = ", ".join(_WITH_ARGUMENT.get(source, source) for source in SOURCES)
        hint = f"did you mean {_WITH_ARGUMENT.get(nearest[0], nearest[0])!r}?" if nearest else f"known: {forms}"
        raise ConfigError(f"tasks.source is {config.source!r}: no such source; {hint}")
    if (name in _WITH_ARGUMENT) != bool(argument):
        raise ConfigError(f"tasks.source is {config.source!r}: write {_WITH_ARGUMENT.get(name, name)!r}")
    return _loader(name)(config, seed)


def _loader(name: str) -> Callable[[TaskConfig, int], list[Prompt]]:
    if name == "sums":
        from burnish.tasks import sums

        return sums.load
    if name == "code":
        from burnish.tasks import code

        return code.load
    if name == "jsonl":
        from burnish.tasks import jsonl

        return jsonl.load
    from burnish.tasks import gym

    return gym.load


def read_params(config: TaskConfig, model: type[ParamsT]) -> ParamsT:
    """`config.params` as `model`. Raises ConfigError naming the parameter."""
    try:
        return model.model_validate(config.params)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.4)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(model.model_fields)}"
            raise ConfigError(f"task {config.title!r}: params.{key} is not a known parameter; {hint}") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigError(f"task {config.title!r}: params.{key} is {first['input']!r}: {message}") from None
