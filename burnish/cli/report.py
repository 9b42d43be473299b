"""`burnish report`: write a run's report again from what lies in the object store, finished or not."""

import argparse
from pathlib import Path

from burnish.cli.home import Home
from burnish.cli.past_run import past_run


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("report", help="write the report of a run again, also while it runs")
    parser.add_argument("run_id", nargs="?", help="run id (default: the latest run of this home)")
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    parser.add_argument("--out", help="folder of the report (default: the run's folder in the home)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from burnish.stages.report import PAGE, write_report

    home = Home.default(given.home)
    with past_run(home, given.run_id) as view:
        folder = Path(given.out) if given.out else home.run_dir(view.run_id)
        write_report(view, folder)
    page = (folder / PAGE).absolute()
    print(f"report  {page}")
    if given.open:
        import webbrowser

        webbrowser.open(page.as_uri())
    return 0
