"""`python -m burnish.stages.<stage>`: run one stage by hand, manifests in, manifests out."""

import argparse
import sys

from burnish.contracts.errors import BurnishError, ConfigError
from burnish.contracts.stages import STAGES
from burnish.stages.entry import run_stage


def stage_main(name: str) -> None:
    """Parse the command line of stage `name` and run it; exits non-zero with one line when something is wrong."""
    stage = STAGES[name]
    parser = argparse.ArgumentParser(
        prog=f"python -m burnish.stages.{name}",
        description=f"Run the {name} stage alone. The store comes from BURNISH_STORE.",
    )
    parser.add_argument("config", help="YAML file, or the manifest of a resolved configuration")
    parser.add_argument("overrides", nargs="*", help="a.b=c settings on top of it")
    parser.add_argument("--run-id", default="alone", help="where its record goes: runs/<run id>/")
    parser.add_argument("--round", type=int, default=None, help="round, from 1, for stages inside a round")
    parser.add_argument("--label", default="", help="before or after, for evaluate")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=MANIFEST",
        help=f"one for each of: {', '.join(stage.reads) or 'none'}",
    )  # fmt: skip
    parser.add_argument(
        "--output", action="append", default=[], metavar="NAME=MANIFEST",
        help=f"where to write the manifest of each of: {', '.join(stage.writes)}",
    )  # fmt: skip
    given = parser.parse_args()
    try:
        run_stage(
            name,
            config_path=given.config,
            run_id=given.run_id,
            inputs=_pairs(given.input),
            outputs=_pairs(given.output),
            round=given.round,
            label=given.label,
            overrides=tuple(given.overrides),
        )
    except BurnishError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _pairs(values: list[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, separator, path = value.partition("=")
        if not separator:
            raise ConfigError(f"{value!r} is not of the form NAME=MANIFEST")
        pairs[key] = path
    return pairs
