"""The engine's process as its server sees it: started, loaded, asked, and ended, each over one socket.

When it dies, everything that waits for it hears so at once.
"""

import asyncio
import json
import os
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

from burnish.serve.settings import ServeSettings

# A line is one completion or one prompt with all its token ids.
_LONGEST_LINE = 64 * 2**20
_END_S = 5.0


class EngineGone(Exception):
    """The process ended; what it was asked is lost."""


class LoadFailed(Exception):
    """The policy was not loaded; the process is of no use any more."""


class EngineProcess:
    """One process with one engine. Methods raise EngineGone."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._writer = process, writer
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._state: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._numbers = count()
        self.alive = True
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, settings: ServeSettings) -> "EngineProcess":
        """A process that has imported everything and holds no policy."""
        ours, theirs = socket.socketpair()
        # It reads files that a model's maker wrote, so it has no keys; Ctrl-C is its server's to answer.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "burnish.serve.worker", str(theirs.fileno()), settings.model_dump_json(),
                pass_fds=[theirs.fileno()], env=environment, start_new_session=True,
            )  # fmt: skip
        engine = cls(process, *await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE))
        await engine._hear()
        return engine

    async def load(self, folder: Path) -> dict[str, Any]:
        """Load the policy in `folder`; what the process says about it. Raises LoadFailed."""
        await self._say({"load": str(folder)})
        message = await self._hear()
        if "loaded" not in message:
            raise LoadFailed(message["failed"])
        loaded: dict[str, Any] = message["loaded"]
        return loaded

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a completion or a score; cancelled, it is no longer drawn."""
        name = str(next(self._numbers))
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        try:
            await self._say({"id": name, **question})
            return await answer
        except asyncio.CancelledError:
            if self.alive:
                self._write({"abandon": name})
            raise
        finally:
            self._answers.pop(name, None)

    async def stop(self) -> None:
        """End it, whatever it is doing."""
        self._writer.close()
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _hear(self) -> dict[str, Any]:
        message = await self._state.get()
        if message is None:
            raise EngineGone(f"the engine's process ended with status {await self._process.wait()}; its log says why")
        return message

    def _write(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _say(self, message: dict[str, Any]) -> None:
        if not self.alive:
            raise EngineGone("the engine's process ended")
        self._write(message)
        try:
            await self._writer.drain()
        except ConnectionError:
            raise EngineGone("the engine's process ended") from None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await _line(reader):
                message = json.loads(line)
                if "id" not in message:
                    self._state.put_nowait(message)
                elif (answer := self._answers.get(message["id"])) and not answer.done():
                    answer.set_result(message)
        finally:
            self.alive = False
            self._state.put_nowait(None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(EngineGone("the engine's process ended"))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end of the stream, which a process that is killed may reset."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
