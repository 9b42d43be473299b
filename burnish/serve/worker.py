"""The process that holds the weights: JSON lines in, JSON lines out, one engine, and nothing of HTTP or the store.

It is replaced as a whole when a policy does not fit into what is loaded, so no weights of two policies ever mix.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from burnish.contracts.config import ModelConfig, RuntimeConfig
from burnish.contracts.errors import BurnishError, StageError
from burnish.contracts.sampling import RolloutConfig
from burnish.models.engine import Completion, Engine, Request, Sampling, open_engine
from burnish.models.probe_weights import check_weights, read_probe
from burnish.models.runtime import setup_torch
from burnish.models.vllm_engine import import_vllm
from burnish.serve.architecture import Architecture, read_architecture
from burnish.serve.settings import ServeSettings

# A burst of single requests becomes one batch of the hf engine, which takes no more until it is done.
_GATHER_S = 0.02


class Stepper(Protocol):
    """An engine that takes requests at any time."""

    @property
    def busy(self) -> bool: ...

    def add(self, request: Request, sampling: Sampling) -> None: ...

    def abandon(self, request_id: str) -> None: ...

    def step(self) -> list[Completion]:
        """Go on a little; those that are done."""
        ...


class BatchStepper:
    """Batch after batch through an engine that takes no requests while it draws."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[tuple[Request, Sampling]] = deque()
        self._drawing: Iterator[Completion] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self._drawing is not None

    def add(self, request: Request, sampling: Sampling) -> None:
        self._waiting.append((request, sampling))

    def abandon(self, request_id: str) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0].request_id != request_id)

    def step(self) -> list[Completion]:
        if self._drawing is None and self._waiting:
            sampling = self._waiting[0][1]
            batch = [request for request, wanted in self._waiting if wanted == sampling]
            self._waiting = deque(entry for entry in self._waiting if entry[1] != sampling)
            self._drawing = iter(self._engine.generate(batch, sampling))
        completion = next(self._drawing, None) if self._drawing is not None else None
        if completion is None:
            self._drawing = None
            return []
        return [completion]


class Worker:
    """One engine and the connection to its server."""

    def __init__(self, settings: ServeSettings, connection: socket.socket) -> None:
        self._settings = settings
        self._lines = connection.makefile("rb")
        self._connection = connection
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._device = setup_torch(RuntimeConfig(device=settings.device, threads=settings.threads), seed=0)
        self._dtype = settings.dtype if self._device.type == "cuda" else "float32"
        if settings.engine == "vllm":
            # Half of what the first policy would otherwise wait for.
            import_vllm()
        self._engine: Any = None
        self._stepper: Stepper | None = None
        self._loaded: Architecture | None = None

    def run(self) -> None:
        """Serve until the server hangs up."""
        threading.Thread(target=self._read, daemon=True).start()
        self._say({"ready": str(self._device)})
        while True:
            busy = self._stepper is not None and self._stepper.busy
            message = self._next(wait=not busy)
            while message is not None:
                self._handle(message)
                message = self._next(wait=False)
            if self._stepper is not None and self._stepper.busy:
                for completion in self._stepper.step():
                    self._say({"id": completion.request_id, "completion": _completion_json(completion)})

    def _read(self) -> None:
        try:
            for line in self._lines:
                self._inbox.put(json.loads(line))
        finally:
            # Also when the connection broke: whatever is being drawn, nobody is left to take it.
            os._exit(0)

    def _next(self, wait: bool) -> dict[str, Any] | None:
        try:
            message = self._inbox.get(block=wait)
        except queue.Empty:
            return None
        if wait and "input_ids" in (message or {}) and self._settings.engine == "hf":
            time.sleep(_GATHER_S)
        return message

    def _say(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")

    def _handle(self, message: dict[str, Any]) -> None:
        if "load" in message:
            self._say(self._load(Path(message["load"])))
        elif "abandon" in message:
            if self._stepper is not None:
                self._stepper.abandon(message["abandon"])
        elif "response_ids" in message:
            scores = self._engine.score(message["input_ids"], message["response_ids"])
            self._say({"id": message["id"], "scores": [score if isfinite(score) else None for score in scores]})
        else:
            assert self._stepper is not None
            request = Request(message["id"], message["input_ids"], message["seed"])
            self._stepper.add(request, Sampling(message["temperature"], message["max_new_tokens"]))

    def _load(self, folder: Path) -> dict[str, Any]:
        """Put the policy of `folder` in place of the one before and prove that it answers."""
        started = time.perf_counter()
        try:
            found = read_architecture(folder)
            probe = read_probe(folder)
            if self._engine is None or self._settings.engine == "hf":
                self._open(folder)
            elif self._loaded == found and probe:
                self._engine.reload(folder)
            else:
                raise StageError("what is loaded has another shape, or the new policy has no probe")
            gap = check_weights(self._engine, probe, dtype=self._dtype, tolerance=None, title="rollout server")
        except Exception as error:
            # Whatever it is, this process is of no use any more: its server replaces it.
            traceback.print_exc()
            return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        self._loaded = found
        seconds = time.perf_counter() - started
        return {"loaded": {"vocabulary": found.vocabulary, "probe_gap": gap, "seconds": seconds}}

    def _open(self, folder: Path) -> None:
        settings = self._settings
        self._engine = self._stepper = None
        self._engine = open_engine(
            folder,
            model=ModelConfig(dtype=self._dtype, attention=settings.attention),
            rollout=RolloutConfig(
                engine=settings.engine,
                batch_size=settings.batch_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
            ),
            device=self._device,
            max_length=settings.max_length,
        )
        self._stepper = self._engine if settings.engine == "vllm" else BatchStepper(self._engine)


def _completion_json(completion: Completion) -> dict[str, Any]:
    return {
        "response_ids": completion.response_ids,
        "logprobs": [value if isfinite(value) else None for value in completion.logprobs],
        "finish_reason": completion.finish_reason,
    }


if __name__ == "__main__":
    try:
        Worker(ServeSettings.model_validate_json(sys.argv[2]), socket.socket(fileno=int(sys.argv[1]))).run()
    except BurnishError as error:
        sys.exit(f"error: {error}")
