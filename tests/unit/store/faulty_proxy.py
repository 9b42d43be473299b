"""An HTTP proxy in front of a real S3 server that breaks answers on demand: error statuses and truncated bodies."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Faults:
    """What the proxy does to the next requests; every request is noted as (method, path)."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """Answered instead of asking the server, one a request."""
        self.truncate: list[int] = []
        """Bytes after which the body of a GET breaks off, one a request."""
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def take(self, queue: list[int]) -> int | None:
        with self._lock:
            return queue.pop(0) if queue else None


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[tuple[str, Faults]]:
    """The proxy's address and what to break."""
    faults = Faults()
    host = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            faults.requests.append((self.command, self.path))
            status = faults.take(faults.statuses)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection(host)
            connection.request(self.command, self.path, body or None, dict(self.headers))
            response = connection.getresponse()
            data = response.read()
            connection.close()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                    self.send_header(name, value)
            length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            cut = faults.take(faults.truncate) if self.command == "GET" and data else None
            self.wfile.write(data[:cut])
            if cut is not None:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
