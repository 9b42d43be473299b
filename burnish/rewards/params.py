"""Arguments of a scorer, read from its `params` with an error that names the scorer and the field."""

import difflib
from typing import TypeVar

from pydantic import ValidationError

from burnish.contracts.config import ScorerConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.section import Section

ParamsT = TypeVar("ParamsT", bound=Section)


class NoParams(Section):
    """For scorers that take none."""


def read_params(config: ScorerConfig, model: type[ParamsT]) -> ParamsT:
    """`config.params` as `model`. Raises ConfigError."""
    try:
        return model.model_validate(config.params)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        where = f"scorer {config.name!r}: params.{key}" if key else f"scorer {config.name!r}: params"
        if first["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.4)
            known = f"known here: {', '.join(model.model_fields) or 'none'}"
            raise ConfigError(
                f"{where} is not known; {f'did you mean {nearest[0]!r}?' if nearest else known}"
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where} is {first['input']!r}: {message[0].lower()}{message[1:]}") from None
