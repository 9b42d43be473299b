import asyncio
import io
from contextlib import redirect_stderr
from typing import ClassVar

import pytest
from rollout_server import put_policy, store_in

from burnish.serve import server as server_module
from burnish.serve.engine_process import EngineGone, LoadFailed
from burnish.serve.server import PolicyServer
from burnish.serve.settings import ServeSettings
from sandbox.http_server import HttpError
from sandbox.serve import JsonLog

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


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run a play with a server and the digests of two policies."""
    store = store_in(tmp_path)
    digests = []
    for version, name in enumerate("ab"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text(name)
        digests.append(put_policy(store, folder, version).digest)
    engines = []

    async def start(settings):
        engines.append(FakeEngine())
        return engines[-1]

    FakeEngine.plan = []
    monkeypatch.setattr(server_module.EngineProcess, "start", start)

    def run(scene, log_level="error", **settings):
        async def all_of_it():
            server = PolicyServer(ServeSettings(engine="hf", drain_s=0, **settings), store, JsonLog(log_level))
            await server.warm_up()
            await scene(server, digests, engines)
            await server.drain()

        with redirect_stderr(io.StringIO()) as log:
            asyncio.run(all_of_it())
        return log.getvalue()

    run.store = store
    return run


async def held(server, digest, holder, label=""):
    while not server.hold(digest, holder, label):
        await asyncio.sleep(0.001)


def question(token=1, seed=0):
    return {"input_ids": [token], "seed": seed, "temperature": 1.0, "max_new_tokens": 4}


def ask(server, digest, holder="h", gone=lambda: False, **changes):
    return asyncio.ensure_future(server.ask(digest, holder, question(**changes), gone))


def test_another_policy_is_refused_with_the_holders_name_until_it_is_given_back(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one", "my-run: round 1 - rollout")
        await held(server, digests[0], "two", "my-run: round 1 - rollout, shard 1")
        with pytest.raises(
            HttpError, match=rf"{digests[0][:12]} is in use by 'my-run: round 1 - rollout' for 0 s, "
        ) as e:
            server.hold(digests[1], "three", "other")
        assert (e.value.status, e.value.retry_after) == (409, 2.0)
        server.release("one")
        with pytest.raises(HttpError, match=r"'my-run: round 1 - rollout, shard 1' for 0 s$"):
            server.hold(digests[1], "three", "other")
        server.release("two")
        await held(server, digests[1], "three", "other")
        assert engines[0].loaded == ["a", "b"]
        assert len(engines) == 1
        assert server.metrics.refused["busy"] == 2

    play(scene)


def test_a_holder_that_died_blocks_for_its_lease_and_no_longer(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "killed")
        with pytest.raises(HttpError, match="is in use"):
            server.hold(digests[1], "next", "")
        await asyncio.sleep(0.25)
        await held(server, digests[1], "next")

    play(scene, lease_s=0.2)


def test_a_policy_is_not_replaced_while_something_is_drawn_with_it(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        answer = ask(server, digests[0], None)
        await asyncio.sleep(0.01)
        server.release("one")
        with pytest.raises(HttpError, match="is in use for 1 completions under way"):
            server.hold(digests[1], "two", "")
        engines[0].gate.set()
        assert (await answer)["completion"]["of"] == "a"
        await held(server, digests[1], "two")
        assert (await ask(server, digests[1]))["completion"]["of"] == "b"

    play(scene)


def test_while_one_is_loaded_another_is_refused_and_nothing_is_drawn(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        server.release("one")
        assert server.hold(digests[1], "two", "second") is False
        assert server.state()["state"] == "loading"
        with pytest.raises(HttpError, match=f"{digests[1][:12]} is being loaded by 'second'"):
            server.hold(digests[0], "one", "")
        for digest in digests:
            with pytest.raises(HttpError) as e:
                await ask(server, digest)
            assert e.value.status == 409
        await held(server, digests[1], "two", "second")

    play(scene)


def test_a_policy_that_does_not_go_in_gets_a_fresh_engine(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        server.release("one")
        FakeEngine.plan = [LoadFailed("the engine still runs the old weights")]
        await held(server, digests[1], "two")
        assert [engine.loaded for engine in engines] == [["a"], ["b"]]
        assert [engine.alive for engine in engines] == [False, True]
        assert server.metrics.fresh_engines == 1

    play(scene)


def test_an_engine_that_hangs_while_it_loads_is_replaced(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        server.release("one")
        FakeEngine.plan = ["hang"]
        await held(server, digests[1], "two")
        assert [engine.loaded for engine in engines] == [["a"], ["b"]]

    assert "not loaded it within 0.1 s" in play(scene, load_s=0.1, log_level="warning")


def test_a_policy_that_no_engine_takes_leaves_none_and_says_so_to_all_who_wait_for_it(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        server.release("one")
        FakeEngine.plan = [LoadFailed("bad shape"), LoadFailed("bad shape")]
        server.hold(digests[1], "two", "")
        server.hold(digests[1], "three", "")
        while server.loading:
            await asyncio.sleep(0.001)
        for holder in ("two", "three"):
            with pytest.raises(HttpError, match=f"policy {digests[1]} cannot be loaded: bad shape") as e:
                server.hold(digests[1], holder, "")
            assert e.value.status == 422
        assert server.state()["state"] == "empty"
        for digest in digests:
            with pytest.raises(HttpError, match="is not loaded, but none"):
                await ask(server, digest)
        await held(server, digests[0], "one")
        assert engines[-1].loaded == ["a"]

    play(scene)


def test_a_policy_that_the_store_does_not_give_leaves_the_one_before_answering(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        server.release("one")
        server.hold("f" * 64, "two", "")
        while server.loading:
            await asyncio.sleep(0.001)
        with pytest.raises(HttpError, match=r"cannot be loaded: object store .* no object manifests/f"):
            server.hold("f" * 64, "two", "")
        engines[0].gate.set()
        assert (await ask(server, digests[0]))["completion"]["of"] == "a"

    play(scene)


def test_what_is_no_policy_is_refused(play, tmp_path):
    digest = put_policy(play.store, tmp_path / "a", 3, kind="report").digest

    async def scene(server, digests, engines):
        server.hold(digest, "one", "")
        while server.loading:
            await asyncio.sleep(0.001)
        with pytest.raises(HttpError, match="cannot be loaded: it is a report, not a policy"):
            server.hold(digest, "one", "")

    play(scene)


def test_an_engine_that_died_is_replaced_for_those_who_hold_its_policy(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        await held(server, digests[0], "two")
        answer = ask(server, digests[0])
        await asyncio.sleep(0.01)
        engines[0].alive = False
        with pytest.raises(HttpError, match="ended") as e:
            await answer
        assert e.value.status == 503
        assert server.state()["state"] == "empty"
        await held(server, digests[0], "one")
        assert await ask_open(server, digests[0], engines[1])

    async def ask_open(server, digest, engine):
        engine.gate.set()
        return await ask(server, digest)

    play(scene)


def test_the_same_question_is_drawn_once_and_answered_twice(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        answers = [ask(server, digests[0], seed=7), ask(server, digests[0], seed=7), ask(server, digests[0], seed=8)]
        await asyncio.sleep(0.01)
        engines[0].gate.set()
        first, second, _ = [await answer for answer in answers]
        assert first == second
        assert [asked["seed"] for asked in engines[0].asked] == [7, 8]
        assert (server.metrics.tokens, server.in_flight) == (2, 0)

    play(scene)


def test_a_token_outside_the_vocabulary_never_reaches_the_engine(play):
    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        with pytest.raises(HttpError, match="token id 10 is not below the vocabulary's size 10") as e:
            await ask(server, digests[0], token=VOCABULARY)
        assert e.value.status == 400
        assert engines[0].asked == []

    play(scene)


def test_what_is_drawn_for_a_client_that_is_gone_is_kept_for_its_return_and_then_dropped(play, monkeypatch):
    monkeypatch.setattr(server_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(server_module, "_ORPHAN_S", 0.1)

    async def scene(server, digests, engines):
        await held(server, digests[0], "one")
        with pytest.raises(HttpError, match="the client is gone"):
            await ask(server, digests[0], gone=lambda: True)
        server.drop_orphans()
        again = ask(server, digests[0])
        await asyncio.sleep(0.15)
        server.drop_orphans()
        engines[0].gate.set()
        await again
        assert len(engines[0].asked) == 1

        engines[0].gate.clear()
        with pytest.raises(HttpError, match="the client is gone"):
            await ask(server, digests[0], seed=1, gone=lambda: True)
        await asyncio.sleep(0.15)
        server.drop_orphans()
        await asyncio.sleep(0.01)
        assert server.in_flight == 0

    play(scene)


def test_a_server_that_shuts_down_finishes_what_is_under_way_and_takes_nothing_new(play):
    async def scene(server, digests, engines):
        server.settings = server.settings.model_copy(update={"drain_s": 5.0})
        await held(server, digests[0], "one")
        answer = ask(server, digests[0])
        await asyncio.sleep(0.01)
        over = asyncio.ensure_future(server.drain())
        await asyncio.sleep(0.01)
        for refused in (lambda: server.hold(digests[0], "two", ""), lambda: server._require(digests[0])):
            with pytest.raises(HttpError, match="shutting down") as e:
                refused()
            assert e.value.status == 503
        engines[0].gate.set()
        assert (await answer)["completion"]["finish_reason"] == "stop"
        await over
        assert not engines[0].alive

    play(scene)
