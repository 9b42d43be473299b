"""`python -m sandbox serve`: the service as a process, its signals and its log.

The log is one JSON object a line on standard error, about jobs by id and never with what is in them.
"""

import asyncio
import json
import signal
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from sandbox.http_server import HttpError, HttpServer, Request, Response
from sandbox.routes import Routes
from sandbox.service import Service, Settings

_LEVELS = ("debug", "info", "warning", "error")


class JsonLog:
    """`log(event, level="info", **fields)`, from one level up."""

    def __init__(self, least: str = "info") -> None:
        self._least = _LEVELS.index(least)

    def __call__(self, event: str, level: str = "info", **fields: Any) -> None:
        if _LEVELS.index(level) >= self._least:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"time": moment, "level": level, "event": event, **fields}), file=sys.stderr, flush=True)


def serve(settings: Settings, host: str, port: int, log: JsonLog) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises SandboxUnavailable, OSError when the port is taken."""
    asyncio.run(_serve(settings, host, port, log))


async def _serve(settings: Settings, host: str, port: int, log: JsonLog) -> None:
    service = Service(settings, log)
    routes = Routes(service)

    async def handle(request: Request) -> Response:
        try:
            return await routes.handle(request)
        except HttpError:
            raise
        except Exception as error:
            # The message may quote the request, so it stays out of the log.
            frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-5:]]
            log("fault", level="error", path=request.path[:200], error=type(error).__name__, frames=frames)
            raise HttpError(500, "a fault of the service; see its log") from None

    server = HttpServer(handle)
    listening = await server.start(host, port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    at = listening.sockets[0].getsockname()[1]
    log("listening", host=host, port=at, workers=settings.workers, token=settings.token is not None)
    await stop.wait()
    await service.drain()
    listening.close()
    server.close_connections()
    log("stopped")
