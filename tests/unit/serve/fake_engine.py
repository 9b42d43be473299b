"""Stands for the engine's process, and a client's first steps, where a test is about the server between them."""

import asyncio
from typing import ClassVar

from burnish.serve.engine_process import EngineGone

VOCABULARY = 10


class FakeEngine:
    """Stands for the engine's process: `draw` answers when `gate` is open, and loads as `plan` says."""

    plan: ClassVar[list] = []

    def __init__(self):
        self.alive = True
        self.gate = asyncio.Event()
        self.asked = []
        self.loaded = []

    async def load(self, folder):
        await asyncio.sleep(0)
        if type(self).plan == ["hang"]:
            type(self).plan = []
            await asyncio.sleep(60)
        outcome = type(self).plan.pop(0) if type(self).plan else None
        if outcome is not None:
            raise outcome
        self.loaded.append((folder / "name").read_text())
        return {"vocabulary": VOCABULARY, "probe_gap": 0.0, "seconds": 0.1}

    async def ask(self, question):
        self.asked.append(question)
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
            if not self.alive:
                raise EngineGone("the engine's process ended")
        return {"completion": {"response_ids": [1], "logprobs": [-0.5], "finish_reason": "stop", "of": self.loaded[-1]}}

    async def stop(self):
        self.alive = False


async def held(server, digest, holder, label=""):
    while not server.hold(digest, holder, label):
        await asyncio.sleep(0.001)


def question(token=1, seed=0):
    return {"input_ids": [token], "seed": seed, "temperature": 1.0, "max_new_tokens": 4}


def ask(server, digest, holder="h", gone=lambda: False, **changes):
    return asyncio.ensure_future(server.ask(digest, holder, question(**changes), gone))
