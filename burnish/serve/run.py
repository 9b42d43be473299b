"""The rollout server as a process: its port, its signals and its log, one JSON object a line on standard error."""

import asyncio
import signal
import traceback

from burnish.serve.routes import Routes
from burnish.serve.server import PolicyServer
from burnish.serve.settings import ServeSettings
from burnish.store import ArtifactStore
from sandbox.http_server import HttpError, HttpServer, Request, Response
from sandbox.serve import JsonLog

# Every completion is a connection of its own while it is drawn.
_MAX_CONNECTIONS = 4096


def serve(settings: ServeSettings, store: ArtifactStore, host: str, port: int, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises EngineGone when no engine starts, OSError for the port."""
    asyncio.run(_serve(settings, store, host, port, token))


async def _serve(settings: ServeSettings, store: ArtifactStore, host: str, port: int, token: str | None) -> None:
    log = JsonLog()
    server = PolicyServer(settings, store, log)
    routes = Routes(server, token)

    async def handle(request: Request) -> Response:
        try:
            return await routes.handle(request)
        except HttpError:
            raise
        except Exception:
            traceback.print_exc()
            raise HttpError(500, "a fault of the server; see its log") from None

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.warm_up()
    http = HttpServer(handle, max_connections=_MAX_CONNECTIONS)
    listening = await http.start(host, port)
    at = listening.sockets[0].getsockname()[1]
    log("listening", host=host, port=at, engine=settings.engine, token=token is not None)
    while not stop.is_set():
        server.drop_orphans()
        try:
            async with asyncio.timeout(1.0):
                await stop.wait()
        except TimeoutError:
            continue
    await server.drain()
    listening.close()
    http.close_connections()
    log("stopped")
