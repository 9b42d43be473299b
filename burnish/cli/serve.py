"""`burnish serve`: the warm rollout server, which stages ask with `rollout.engine=endpoint`."""

import argparse
import os
from typing import Any, get_args

from pydantic import ValidationError

from burnish.contracts.errors import ConfigError, StageError
from burnish.contracts.sampling import ROLLOUT_TOKEN
from burnish.serve.settings import ServeSettings


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="the warm rollout server: an engine that stays up between rounds",
        description="An engine that stays up between rounds and loads the policies that stages ask for from the store "
        f"(BURNISH_STORE and its keys). {ROLLOUT_TOKEN}: the bearer token of its clients; unset: none.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free; the log says which")
    for name, field in ServeSettings.model_fields.items():
        choices = get_args(field.annotation) or None
        kind: Any = str if choices else field.annotation
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, choices=choices, default=field.default, help=field.description)
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from burnish.serve.engine_process import EngineGone
    from burnish.serve.run import serve
    from burnish.store import open_store

    settings = settings_of(given)
    # Out of the environment, so that the engine's process never has it.
    token = os.environ.pop(ROLLOUT_TOKEN, "").strip() or None
    try:
        serve(settings, open_store(), given.host, given.port, token)
    except EngineGone as error:
        raise StageError(f"serve: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot listen on {given.host}:{given.port}: {error.strerror}") from None
    return 0


def settings_of(given: argparse.Namespace) -> ServeSettings:
    """Raises ConfigError naming the option."""
    try:
        return ServeSettings(**{name: getattr(given, name) for name in ServeSettings.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
