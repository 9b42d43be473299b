"""`burnish exporter`: figures of the runs in the store for Prometheus, for as long as it runs."""

import argparse
import signal
import sys

from burnish.contracts.errors import BurnishError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("exporter", help="serve figures of the runs in the store to Prometheus")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=9095, help="port to listen on (default: 9095; 0: a free one)")
    parser.add_argument("--interval", type=float, default=30.0, help="seconds between two looks (default: 30)")
    parser.add_argument(
        "--active-hours", type=float, default=24.0, help="serve runs that did something so recently (default: 24)"
    )
    parser.add_argument("--max-runs", type=int, default=50, help="serve at most the newest so many (default: 50)")
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    from burnish.monitor.exporter import Exporter, make_server
    from burnish.monitor.watcher import RunWatcher
    from burnish.store import open_store

    watcher = RunWatcher(open_store(), given.active_hours * 3600, given.max_runs)
    exporter = Exporter(watcher, given.interval)
    try:
        server = make_server(exporter, given.host, given.port)
    except OSError as error:
        raise BurnishError(
            f"--port {given.port} of {given.host} cannot be used ({error.strerror}); choose another"
        ) from None
    # The first process of a container ignores a signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    exporter.start()
    with server:
        print(f"http://{given.host}:{server.server_port}/metrics", flush=True)
        server.serve_forever()
    return 0
