"""`burnish ui`: MLflow over the runs of a home folder and the latest report, until Ctrl-C."""

import argparse
import os
import time
import webbrowser
from pathlib import Path

from burnish.cli.home import Home
from burnish.contracts.errors import BurnishError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("ui", help="open MLflow and the latest report")
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    parser.add_argument("--port", type=int, default=0, help="port of MLflow (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the addresses")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from burnish.track.local_server import start_mlflow

    home = Home.default(given.home)
    if not home.root.is_dir():
        raise BurnishError(f"there is no folder {str(home.root)!r}: `burnish run` makes it, --home names another")
    pages = _reports(home)
    with start_mlflow(home.root, given.port) as server:
        for page in pages:
            print(f"report  {page}", flush=True)
        if not pages:
            print("report  none yet: `burnish run` writes it at its end", flush=True)
        print(f"mlflow  {server.uri} (starting, up to half a minute)", flush=True)
        server.wait_ready()
        print("ready; Ctrl-C ends it", flush=True)
        if not given.no_browser and _has_browser():
            for address in [page.as_uri() for page in pages[:1]] + [server.uri]:
                webbrowser.open(address)
        try:
            while server.is_ready():
                time.sleep(2)
        except KeyboardInterrupt:
            return 0
        raise BurnishError(f"MLflow stopped answering; see {home.root / 'mlflow.log'}")


def _reports(home: Home) -> list[Path]:
    """Reports of this home, the newest first."""
    found = {page.resolve() for page in home.run_dir("").glob("*/report.html")}
    return sorted(found, key=lambda page: page.stat().st_mtime, reverse=True)[:5]


def _has_browser() -> bool:
    """Whether a page would appear somewhere, not in this terminal or nowhere."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")) or (
        os.uname().sysname == "Darwin"
    )
