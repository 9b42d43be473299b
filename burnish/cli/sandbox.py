"""`burnish sandbox check|serve|run`: the sandbox's own commands, which work without Burnish as `python -m sandbox`."""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "sandbox", help="run untrusted code: check (the attack suite), serve (the service), run (one program)"
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="check|serve|run ...", help="each of them has its own --help"
    )
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from sandbox.__main__ import main

    return main(given.arguments, prog="burnish sandbox")
