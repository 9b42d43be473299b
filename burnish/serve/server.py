"""One policy at a time: it is loaded when nobody holds another, and every answer is of the policy that was asked for.

A load that fails leaves the server without a policy, never with half of one. What is asked for twice is drawn once.
"""

import asyncio
import hashlib
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import Manifest, canonical_json
from burnish.contracts.errors import BurnishError, ContractError
from burnish.serve.engine_process import EngineGone, EngineProcess, LoadFailed
from burnish.serve.holders import Holders
from burnish.serve.metrics import Metrics
from burnish.serve.settings import ServeSettings
from burnish.store import ArtifactStore
from sandbox.http_server import HttpError
from sandbox.serve import JsonLog

# A client whose connection broke asks again well within it.
_ORPHAN_S = 10.0
# How long a policy that failed to load answers with that failure, to all shards that wait for it.
_FAILURE_S = 30.0
_BUSY_AFTER_S = 2.0
# How often an answer that is waited for looks whether its client is still there.
_LOOK_S = 1.0


@dataclass
class Policy:
    """What is loaded, or about to be."""

    digest: str
    version: int | None = None
    vocabulary: int = 0
    probe_gap: float | None = None
    loaded_at: float = 0.0
    """Unix time."""


@dataclass
class _Drawing:
    """One question to the engine, and how many connections wait for its answer."""

    task: asyncio.Task[dict[str, Any]]
    waiting: int = 0
    left_at: float = field(default_factory=time.monotonic)


class PolicyServer:
    """All methods run in one event loop."""

    def __init__(self, settings: ServeSettings, store: ArtifactStore, log: JsonLog) -> None:
        self.settings, self.log, self.metrics = settings, log, Metrics()
        self.holders = Holders(settings.lease_s)
        self.policy: Policy | None = None
        self.loading: Policy | None = None
        self.draining = False
        self._store = store
        self._engine: EngineProcess | None = None
        self._load_task: asyncio.Task[None] | None = None
        self._failure: tuple[str, str, float] | None = None
        self._drawings: dict[str, _Drawing] = {}

    @property
    def in_flight(self) -> int:
        return len(self._drawings)

    async def warm_up(self) -> None:
        """Have an engine's process ready, so that the first policy waits for its weights alone. Raises EngineGone."""
        self._engine = await EngineProcess.start(self.settings)

    def hold(self, digest: str, holder: str, label: str) -> bool:
        """Whether policy `digest` is loaded, for `holder` from now on; loads it if nobody holds another.

        Raises HttpError: 409 while another policy is held, 422 when this one cannot be loaded.
        """
        if self.draining:
            raise HttpError(503, "the server is shutting down", retry_after=1)
        if self.loading is not None:
            if self.loading.digest != digest:
                self._refuse_busy()
            self.holders.touch(holder, label)
            return False
        # A policy whose engine died is loaded again, for all who hold it.
        if self.policy is None or self.policy.digest != digest:
            if self.holders.present() or self._drawings:
                self._refuse_busy()
        elif self._engine is not None and self._engine.alive:
            self.holders.touch(holder, label)
            return True
        if self._failure and self._failure[0] == digest and time.monotonic() - self._failure[2] < _FAILURE_S:
            raise HttpError(422, self._failure[1])
        self.holders.touch(holder, label)
        self.loading = Policy(digest)
        self._load_task = asyncio.create_task(self._load(self.loading))
        return False

    def release(self, holder: str) -> None:
        self.holders.release(holder)

    async def ask(
        self, digest: str, holder: str | None, question: dict[str, Any], gone: Callable[[], bool]
    ) -> dict[str, Any]:
        """The engine's answer, drawn with policy `digest`; not waited for once the client is `gone`.

        The same question asked twice at a time, as after a broken connection, is drawn once. Raises HttpError 409
        when `digest` is not what is loaded, 503 when the engine died, 400 for a token that the policy has not.
        """
        policy = self._require(digest)
        largest = max(question["input_ids"] + question.get("response_ids", []))
        if largest >= policy.vocabulary:
            # It would end the engine.
            raise HttpError(400, f"token id {largest} is not below the vocabulary's size {policy.vocabulary}")
        if holder:
            self.holders.touch(holder)
        key = hashlib.sha256(canonical_json([digest, question]).encode()).hexdigest()
        drawing = self._drawings.get(key)
        if drawing is None:
            drawing = self._drawings[key] = _Drawing(asyncio.create_task(self._draw(key, question)))
        drawing.waiting += 1
        try:
            while not drawing.task.done():
                await asyncio.wait({drawing.task}, timeout=_LOOK_S)
                if gone():
                    raise HttpError(503, "the client is gone")
            return drawing.task.result()
        except EngineGone as error:
            raise HttpError(503, str(error), retry_after=1) from None
        finally:
            drawing.waiting -= 1
            drawing.left_at = time.monotonic()
            if holder and self.policy is policy:
                self.holders.touch(holder)

    def drop_orphans(self) -> None:
        """Draw no more for clients that are gone and did not come back."""
        for key, drawing in list(self._drawings.items()):
            if not drawing.waiting and time.monotonic() - drawing.left_at > _ORPHAN_S:
                del self._drawings[key]
                drawing.task.cancel()

    async def drain(self) -> None:
        """Take nothing new, finish what is under way within `drain_s`, and end the engine."""
        self.draining = True
        if self._drawings:
            await asyncio.wait([drawing.task for drawing in self._drawings.values()], timeout=self.settings.drain_s)
        if self._load_task is not None:
            self._load_task.cancel()
            await asyncio.gather(self._load_task, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop()

    def state(self) -> dict[str, Any]:
        """What `GET /burnish/version` says."""
        policy, failure = self._answering(), self._failure
        return {
            "state": "draining" if self.draining else "loading" if self.loading else "ready" if policy else "empty",
            "policy": policy.digest if policy else None,
            "policy_version": policy.version if policy else None,
            "loaded_at": policy.loaded_at if policy else None,
            "probe_gap": policy.probe_gap if policy else None,
            "loading": self.loading.digest if self.loading else None,
            "failure": {"policy": failure[0], "reason": failure[1]} if failure else None,
            "holders": [
                {"label": holder.label, "since_s": round(self.holders.age(holder), 1)}
                for holder in self.holders.present()
            ],
            "in_flight": self.in_flight,
            "engine": self.settings.engine,
            "max_length": self.settings.max_length,
        }

    def _answering(self) -> Policy | None:
        """The policy that completions are drawn with now."""
        return self.policy if not self.loading and self._engine is not None and self._engine.alive else None

    def _require(self, digest: str) -> Policy:
        if self.draining:
            raise HttpError(503, "the server is shutting down", retry_after=1)
        policy = self._answering()
        if policy is None or policy.digest != digest:
            self.metrics.refused["version"] += 1
            raise HttpError(409, f"policy {digest} is not loaded, but {policy.digest if policy else 'none'}", 1)
        return policy

    def _refuse_busy(self) -> None:
        self.metrics.refused["busy"] += 1
        current = self.loading or self.policy
        name = "another policy" if current is None else f"policy {current.digest[:12]}"
        doing = "is being loaded" if self.loading else "is in use"
        holders = [f"{holder.label!r} for {self.holders.age(holder):.0f} s" for holder in self.holders.present()]
        by = f" by {', '.join(holders)}" if holders else f" for {self.in_flight} completions under way"
        raise HttpError(409, f"{name} {doing}{by}", retry_after=_BUSY_AFTER_S)

    async def _draw(self, key: str, question: dict[str, Any]) -> dict[str, Any]:
        try:
            assert self._engine is not None
            answer = await self._engine.ask(question)
            if "completion" in answer:
                self.metrics.completed(answer["completion"]["finish_reason"], len(answer["completion"]["response_ids"]))
            return answer
        finally:
            drawing = self._drawings.get(key)
            if drawing is not None and drawing.task is asyncio.current_task():
                del self._drawings[key]

    async def _load(self, policy: Policy) -> None:
        started = time.monotonic()
        self.log("loading", policy=policy.digest)
        try:
            with tempfile.TemporaryDirectory(prefix="burnish-policy-") as folder:
                manifest = await asyncio.to_thread(self._fetch, policy.digest, Path(folder) / "policy")
                policy.version = int(manifest.metadata["policy_version"])
                # From here on the weights of before are no longer whole.
                self.policy = None
                loaded = await self._place(Path(folder) / "policy")
        except Exception as error:
            if not isinstance(error, BurnishError | LoadFailed | EngineGone):
                traceback.print_exc()
            self._failure = (policy.digest, f"policy {policy.digest} cannot be loaded: {error}", time.monotonic())
            self.metrics.loads["failed"] += 1
            self.holders.clear()
            self.log("load_failed", level="error", policy=policy.digest, reason=str(error))
        else:
            policy.vocabulary, policy.probe_gap = loaded["vocabulary"], loaded["probe_gap"]
            policy.loaded_at = time.time()
            self.policy, self._failure = policy, None
            seconds = time.monotonic() - started
            self.metrics.loaded(seconds)
            self.log(
                "loaded", policy=policy.digest, version=policy.version, probe_gap=policy.probe_gap,
                seconds=round(seconds, 2), engine_seconds=round(loaded["seconds"], 2),
            )  # fmt: skip
        finally:
            self.loading = None

    def _fetch(self, digest: str, folder: Path) -> Manifest:
        manifest = self._store.get_manifest(digest)
        if manifest.kind != "policy":
            raise ContractError(f"it is a {manifest.kind}, not a policy")
        self._store.fetch(manifest, folder)
        return manifest

    async def _place(self, folder: Path) -> dict[str, Any]:
        """Into the process that there is, or, when they do not go in or do not answer the probe, into a fresh one."""
        if self._engine is not None and self._engine.alive:
            try:
                return await self._load_into(self._engine, folder)
            except (LoadFailed, EngineGone) as error:
                self.log("fresh_engine", level="warning", reason=str(error))
                self.metrics.fresh_engines += 1
            await self._engine.stop()
        self._engine = await EngineProcess.start(self.settings)
        try:
            return await self._load_into(self._engine, folder)
        except LoadFailed:
            await self._engine.stop()
            raise

    async def _load_into(self, engine: EngineProcess, folder: Path) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.settings.load_s):
                return await engine.load(folder)
        except TimeoutError:
            raise LoadFailed(f"the engine has not loaded it within {self.settings.load_s:g} s (--load-s)") from None
