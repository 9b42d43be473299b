import pytest
import torch
from rollout_server import put_policy, store_in

from burnish.contracts.endpoint import EndpointConfig
from burnish.contracts.errors import StageError
from burnish.models.endpoint_engine import EndpointEngine
from burnish.models.engine import Request, Sampling
from burnish.models.hf_engine import HfEngine
from burnish.models.load import load_policy
from burnish.models.probe_weights import check_weights, read_probe

SAMPLING = Sampling(temperature=0.9, max_new_tokens=12)
REQUESTS = [Request(f"{seed}", [3 + seed % 5, 14, 15, 9][: 2 + seed % 3], (1 << 62) + seed) for seed in range(30)]


def engine_at(server, manifest, label="a run: round 1 - rollout", patience_s=30.0, max_length=32):
    settings = EndpointConfig(url=server.url, concurrency=16, patience_s=patience_s)
    return EndpointEngine(settings, policy=manifest.digest, label=label, max_length=max_length)


def drawn_in_process(folder):
    torch.set_num_threads(1)
    policy = load_policy(folder)
    engine = HfEngine(policy.model, policy.eos_token_ids, batch_size=64)
    return {done.request_id: done for done in engine.generate(REQUESTS, SAMPLING)}, engine


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
