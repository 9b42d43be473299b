import pytest
import torch
from rollout_server import put_policy, store_in

from burnish.contracts.errors import StageError
from burnish.contracts.sampling import EndpointConfig
from burnish.models.endpoint_engine import EndpointEngine
from burnish.models.engine import Request, Sampling
from burnish.models.hf_engine import HfEngine
from burnish.models.load import load_policy
from burnish.models.probe_weights import read_probe

SAMPLING = Sampling(temperature=0.9, max_new_tokens=12)
REQUESTS = [Request(f"{seed}", [3 + seed % 5, 14, 15, 9][: 2 + seed % 3], (1 << 62) + seed) for seed in range(30)]


def engine_at(server, manifest, label="a run: round 1 - rollout", patience_s=30.0, max_length=32):
    settings = EndpointConfig(url=server.url, concurrency=16, patience_s=patience_s)
    return EndpointEngine(settings, policy=manifest.digest, label=label, max_length=max_length)


def drawn_in_process(folder, requests=REQUESTS):
    torch.set_num_threads(1)
    policy = load_policy(folder)
    engine = HfEngine(policy.model, policy.eos_token_ids, batch_size=64)
    return {done.request_id: done for done in engine.generate(requests, SAMPLING)}, engine


@pytest.mark.usefixtures("token")
def test_each_policy_draws_what_the_engine_in_the_stage_draws(server, policies, folders):
    for manifest, folder in [*zip(policies, folders, strict=True), (policies[0], folders[0])]:
        expected, local = drawn_in_process(folder)
        remote = engine_at(server, manifest)
        for sample in read_probe(folder):
            found = remote.score(sample.input_ids, sample.response_ids)
            assert found == pytest.approx(local.score(sample.input_ids, sample.response_ids), abs=1e-5)
        found = list(remote.generate(REQUESTS, SAMPLING))
        assert len(found) == len(REQUESTS)
        assert {done.request_id for done in found} == expected.keys()
        for done in found:
            same = expected[done.request_id]
            assert (done.response_ids, done.finish_reason) == (same.response_ids, same.finish_reason)
            assert done.logprobs == pytest.approx(same.logprobs, abs=1e-5)


@pytest.mark.usefixtures("token")
def test_shards_of_a_round_draw_side_by_side_and_another_policy_waits_for_its_turn(server, policies):
    shards = [engine_at(server, policies[0], f"a run: round 1 - rollout, shard {index}") for index in range(2)]
    drawing = [shard.generate(REQUESTS[index::2], SAMPLING) for index, shard in enumerate(shards)]
    begun = [next(one) for one in drawing]
    with pytest.raises(StageError, match=r"other: rollout server .* is in use by 'a run: round 1 - rollout, shard 0'"):
        engine_at(server, policies[1], "other", patience_s=0.3)
    rest = [done for one in drawing for done in one]
    assert sorted(done.request_id for done in begun + rest) == sorted(request.request_id for request in REQUESTS)
    assert list(engine_at(server, policies[1], "other").generate(REQUESTS[:1], SAMPLING))


@pytest.mark.usefixtures("token")
def test_what_cannot_be_loaded_fails_the_stage_with_the_reason(server, shop, folders):
    report = put_policy(store_in(shop), folders[0], 0, kind="report")
    with pytest.raises(StageError, match="cannot be loaded: it is a report, not a policy"):
        engine_at(server, report)


@pytest.mark.usefixtures("token")
def test_samples_longer_than_the_server_takes_are_refused_before_anything_is_drawn(server, policies):
    with pytest.raises(StageError, match=r"takes 64 tokens, .* may have 65; start it with a larger --max-length"):
        engine_at(server, policies[0], max_length=65)


def test_another_token_is_named_with_its_variable(server, policies, monkeypatch):
    monkeypatch.setenv("BURNISH_ROLLOUT_TOKEN", "wrong")
    with pytest.raises(StageError, match="wants another token; set BURNISH_ROLLOUT_TOKEN"):
        engine_at(server, policies[0])
