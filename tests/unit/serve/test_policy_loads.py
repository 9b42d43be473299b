import asyncio

import pytest
from fake_engine import FakeEngine, ask, held
from rollout_server import put_policy

from burnish.serve.engine_process import LoadFailed
from sandbox.http_server import HttpError


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
