import asyncio

import pytest
from fake_engine import VOCABULARY, ask, held

from burnish.serve import server as server_module
from sandbox.http_server import HttpError


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
