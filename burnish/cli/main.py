"""`burnish`: one verb a file. A BurnishError becomes one line on stderr and the error's exit code."""

import argparse
import importlib
import sys

import burnish
from burnish.contracts.errors import BurnishError

VERBS = (
    "run", "plan", "compile", "submit", "campaign", "ui", "report", "doctor", "store", "sandbox", "serve", "exporter",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    parser = argparse.ArgumentParser(prog="burnish", description=burnish.__doc__)
    parser.add_argument("--version", action="version", version=f"burnish {burnish.__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        importlib.import_module(f"burnish.cli.{verb}").add_parser(subparsers)

    given = parser.parse_args(arguments)
    try:
        sys.exit(given.handler(given))
    except BurnishError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last finished stage", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
