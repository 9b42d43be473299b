"""As much of HTTP/1.1 as the service needs, on asyncio streams: keep-alive, and a bound on everything a client sends.

Bodies are JSON with a Content-Length. What all connections together hold of bodies not yet answered is bounded too.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MAX_HEAD = 16384
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


class HttpError(Exception):
    """A request that is answered with an error; the message goes to the client."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Without the query, which nothing here uses."""
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes
    gone: Callable[[], bool]
    """Whether the client has hung up."""

    def json(self) -> Any:
        """The body. Raises HttpError."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise HttpError(400, "the body is not JSON") from None


@dataclass(frozen=True)
class Response:
    status: int
    body: Any
    """JSON, or text as it is."""
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class HttpServer:
    """Serves `handler`; one instance counts what all connections hold."""

    handler: Handler
    max_body: int = 8 * 2**20
    """Bytes of one request's body."""
    max_bodies: int = 64 * 2**20
    """Bytes of all bodies being read or answered."""
    max_connections: int = 512
    read_s: float = 30.0
    """For a request to arrive once it has begun, and for an answer to be taken."""
    idle_s: float = 120.0
    """For the next request to begin."""
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _held: int = 0

    async def start(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD, backlog=256)

    def close_connections(self) -> None:
        for writer in list(self.connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.connections) >= self.max_connections:
            writer.write(_encode(Response(503, {"error": "too many connections"}, {"Retry-After": "1"}), close=True))
            writer.close()
            return
        self.connections.add(writer)
        try:
            # A client that hangs up or dawdles costs its connection and no word in the log.
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection goes on."""
        async with asyncio.timeout(self.idle_s):
            first = await reader.read(1)
        if not first:
            return False
        held = 0
        try:
            try:
                async with asyncio.timeout(self.read_s):
                    method, path, keep, headers = await _read_head(first, reader)
                    length = _body_length(headers, self.max_body)
                    if self._held + length > self.max_bodies:
                        raise HttpError(503, "too many requests are being read", retry_after=1)
                    held = length
                    self._held += held
                    if headers.get("expect", "").lower() == "100-continue":
                        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    body = await reader.readexactly(length)
            except HttpError as error:
                # What follows on this connection may be the body that was not read.
                response, keep = error_response(error), False
            else:
                response = await self._answer(Request(method, path, headers, body, reader.at_eof))
            writer.write(_encode(response, close=not keep))
            async with asyncio.timeout(self.read_s):
                await writer.drain()
        finally:
            self._held -= held
        return keep

    async def _answer(self, request: Request) -> Response:
        try:
            return await self.handler(request)
        except HttpError as error:
            return error_response(error)


def error_response(error: HttpError) -> Response:
    after = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
    return Response(error.status, {"error": str(error)}, after)


async def _read_head(first: bytes, reader: asyncio.StreamReader) -> tuple[str, str, bool, dict[str, str]]:
    """Method, path, whether the connection is kept, headers. Raises HttpError."""
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"the request's head is longer than {MAX_HEAD} bytes") from None
    line, *rest = head[:-4].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if not found:
        raise HttpError(400, "not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for raw in rest:
        header = _HEADER.fullmatch(raw)
        if not header:
            raise HttpError(400, "a header is malformed")
        name = header[1].decode().lower()
        # Two lengths, or two tokens, are how one request is made to look like two.
        if name in headers:
            raise HttpError(400, f"header {name} is given twice")
        headers[name] = header[2].decode("latin-1").strip()
    if "transfer-encoding" in headers:
        raise HttpError(411, "Transfer-Encoding is not supported: give a Content-Length")
    keep = found[3] == b"1" and headers.get("connection", "").lower() != "close"
    return found[1].decode(), found[2].decode().partition("?")[0], keep, headers


def _body_length(headers: dict[str, str], most: int) -> int:
    text = headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise HttpError(400, "Content-Length is not a number")
    if int(text) > most:
        raise HttpError(413, f"the body has {text} bytes; at most {most} are taken")
    return int(text)


def _encode(response: Response, close: bool) -> bytes:
    plain = isinstance(response.body, str)
    body = response.body.encode() if plain else json.dumps(response.body, separators=(",", ":")).encode()
    headers = {
        "Content-Type": "text/plain; version=0.0.4; charset=utf-8" if plain else "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close" if close else "keep-alive",
    } | response.headers
    head = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
    return (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body
