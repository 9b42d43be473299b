"""An HTTP proxy in front of a real S3 server that breaks requests and answers on demand.

Queues break the next answers; the hook `at` sees every request at three points and may do anything there.
"""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Point = Literal["arrived", "half", "executed"]
"""Headers are there; half of the body is there (PUT and POST with a body); the server did it, nobody knows yet."""


class CutConnection(Exception):
    """Raised by a hook: the connection ends without an answer."""


@dataclass
class Answer:
    """What a hook lets the proxy say in place of the server, or from behind it."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Request:
    """One request as the hook sees it."""

    number: int
    """From 1."""
    method: str
    path: str
    answer: Answer | None = None
    """The server's, at the point `executed`."""


class Faults:
    """What the proxy does to the next requests; every request is noted as (method, path)."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """Answered instead of asking the server, one a request."""
        self.truncate: list[int] = []
        """Bytes after which the body of a GET breaks off, one a request."""
        self.at: Callable[[Point, Request], Answer | None] = lambda point, request: None
        """May raise CutConnection, or return what is answered."""
        self.bytes_a_second: float | None = None
        """Of the bodies of GETs, in ten pieces a second."""
        self.clock_error_s: float = 0.0
        """By how much the server's Date is ahead of ours."""
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def note(self, method: str, path: str) -> Request:
        with self._lock:
            self.requests.append((method, path))
            return Request(len(self.requests), method, path)

    def take(self, queue: list[int]) -> int | None:
        with self._lock:
            return queue.pop(0) if queue else None


@contextmanager
def faulty_proxy(upstream: str, port: int = 0) -> Iterator[tuple[str, Faults]]:
    """The proxy's address and what to break."""
    faults = Faults()
    host = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            request = faults.note(self.command, self.path)
            try:
                self._send(self._answer_to(request))
            except CutConnection:
                self.close_connection = True

        def _answer_to(self, request: Request) -> Answer:
            length = int(self.headers.get("Content-Length") or 0)
            early = faults.at("arrived", request)
            body = self.rfile.read(length // 2)
            if length:
                early = early or faults.at("half", request)
            body += self.rfile.read(length - length // 2)
            status = faults.take(faults.statuses)
            if early or status:
                return early or Answer(status or 0)
            connection = http.client.HTTPConnection(host)
            connection.request(self.command, self.path, body or None, dict(self.headers))
            response = connection.getresponse()
            kept = tuple(
                (name, value)
                for name, value in response.getheaders()
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}
            )
            if self.command == "HEAD":
                kept += (("Content-Length", response.getheader("Content-Length") or "0"),)
            request.answer = Answer(response.status, response.read(), kept)
            connection.close()
            return faults.at("executed", request) or request.answer

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(answer.body)))
            elif not any(name == "Content-Length" for name, _ in answer.headers):
                self.send_header("Content-Length", "0")
            self.end_headers()
            if self.command == "HEAD":
                return
            body = answer.body
            cut = faults.take(faults.truncate) if self.command == "GET" and body else None
            if cut is not None:
                body, self.close_connection = body[:cut], True
            step = len(body) if self.command != "GET" or not faults.bytes_a_second else faults.bytes_a_second / 10
            for start in range(0, len(body), max(1, int(step))):
                self.wfile.write(body[start : start + max(1, int(step))])
                if step != len(body):
                    time.sleep(0.1)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate((timestamp or time.time()) + faults.clock_error_s, usegmt=True)

        do_GET = do_PUT = do_HEAD = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that are killed break their connections; that is the test, not a fault of ours."""

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
