"""Serves what the watcher sees to Prometheus: /metrics, /healthz, /readyz, in text format 0.0.4.

A thread scans the store, and requests get the text of its last scan, so a scrape never waits for the store.
"""

import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from burnish.contracts.errors import StoreError
from burnish.monitor.figures import ROUND_FIGURES, RUN_FIGURES, Sample, samples
from burnish.monitor.watcher import RunWatcher

# Far beyond what a scan takes while the store client tries again and again.
_STUCK_SECONDS = 900.0

_OWN: dict[str, str] = {
    "burnish_exporter_scan_timestamp_seconds": "When the store was last read to the end.",
    "burnish_exporter_scan_seconds": "How long that took.",
    "burnish_exporter_scan_failures": "Scans since the last good one that the store did not answer.",
    "burnish_exporter_runs": "Runs that are served.",
    "burnish_exporter_unreadable_records": "Records that are none, or of another version.",
}
HELP = _OWN | RUN_FIGURES | {name: text for name, (_, _, text) in ROUND_FIGURES.items()}
"""Every metric that is served."""


class Exporter:
    """The last scan as text, and whether scanning goes on."""

    def __init__(self, watcher: RunWatcher, interval: float) -> None:
        """`interval`: seconds between two scans."""
        self.ready = False
        """Whether the store has been read once."""
        self._watcher = watcher
        self._interval = interval
        self._failures = 0
        self._runs: list[Sample] = []
        self._own: list[Sample] = []
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._scan_forever, daemon=True, name="scan")

    def start(self) -> None:
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether scanning goes on; a store that is away is no reason to start again."""
        return self._thread.is_alive() and time.monotonic() - self._began < _STUCK_SECONDS + self._interval

    def scan(self) -> None:
        """Read the store once; when it does not answer, what was read before stays."""
        self._began = time.monotonic()
        try:
            runs = self._watcher.scan(time.time())
        except StoreError as error:
            self._failures += 1
            print(f"scan: {error}", flush=True)
            return
        self._failures = 0
        self._runs = [sample for run in runs for sample in samples(run)]
        self._own = [
            ("burnish_exporter_scan_timestamp_seconds", {}, time.time()),
            ("burnish_exporter_scan_seconds", {}, time.monotonic() - self._began),
            ("burnish_exporter_runs", {}, float(len(runs))),
            ("burnish_exporter_unreadable_records", {}, float(self._watcher.unreadable)),
        ]
        self.ready = True

    def text(self) -> str:
        """The answer to /metrics."""
        return exposition([("burnish_exporter_scan_failures", {}, float(self._failures)), *self._own, *self._runs])

    def _scan_forever(self) -> None:
        while True:
            self.scan()
            time.sleep(self._interval)


def exposition(found: Iterable[Sample]) -> str:
    """The samples in Prometheus' text format, each metric once with its help."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in found:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        by_name.setdefault(name, []).append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")
    lines = []
    for name, series in by_name.items():
        lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge", *series]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def make_server(exporter: Exporter, host: str, port: int) -> ThreadingHTTPServer:
    """An HTTP server on `host`:`port` (0: a free one), not yet serving. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        # A client that says nothing must not keep a thread.
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, exporter.text(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/healthz":
                self._say(exporter.healthy)
            elif self.path == "/readyz":
                self._say(exporter.ready)
            else:
                self._answer(404, "try /metrics, /healthz or /readyz\n")

        def _say(self, good: bool) -> None:
            self._answer(200 if good else 503, "ok\n" if good else "not yet, or not any more\n")

        def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Probes and scrapes come every few seconds; nobody reads a line about each."""

    return ThreadingHTTPServer((host, port), Handler)
