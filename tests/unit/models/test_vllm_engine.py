import importlib.util
from types import SimpleNamespace

import pytest
import torch
from test_lora import model_config, train_a_little
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.sampling import RolloutConfig
from burnish.models.engine import Request, Sampling, open_engine
from burnish.models.hf_engine import HfEngine
from burnish.models.load import save_policy
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.models.vllm_engine import _completion, _room_for
from burnish.stages.sft_batches import Example

HERE = importlib.util.find_spec("vllm") is not None
CPU = torch.device("cpu")


def output(token_ids, logprobs, finish_reason="stop"):
    steps = [
        {} if value is None else {token: SimpleNamespace(logprob=value)}
        for token, value in zip(token_ids, logprobs, strict=False)
    ]
    return SimpleNamespace(token_ids=token_ids, logprobs=steps, finish_reason=finish_reason)


def test_a_whole_output_becomes_a_completion():
    found = _completion("a", output([5, 6], [-0.5, -0.25], "length"))
    assert (found.response_ids, found.logprobs, found.finish_reason) == ([5, 6], [-0.5, -0.25], "length")


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "reason"),
    [
        ([5, 6, 7], [-0.5, None, -0.2], "stop"),
        ([5, 6], [-0.5, float("nan")], "stop"),
        ([5, 6], [-0.5], "stop"),
        ([], [], "stop"),
        ([5], [-0.5], "abort"),
        ([5], [-0.5], None),
    ],
)
def test_a_missing_or_non_finite_logprob_aborts_the_sample(token_ids, logprobs, reason):
    assert _completion("a", output(token_ids, logprobs, reason)).finish_reason == "abort"


@pytest.mark.skipif(HERE, reason="vLLM is installed")
def test_without_vllm_the_error_names_the_ways_out(char_folder):
    with pytest.raises(ConfigError, match=r"rollout\.engine=hf"):
        open_engine(char_folder, model=ModelConfig(), rollout=RolloutConfig(engine="vllm"), device=CPU, max_length=32)


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="vLLM is not installed here")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_trainers_model(vllm_engine, char_policy, temperature):
    asked = [
        Request(f"{text}/{seed}", char_policy.tokenizer(text)["input_ids"], (1 << 62) + seed)
        for text in ("3+4=", "12*3-1=")
        for seed in range(4)
    ]
    drawn = {c.request_id: c for c in vllm_engine.generate(asked, Sampling(temperature, 12))}
    assert drawn.keys() == {request.request_id for request in asked}
    for request in asked:
        completion = drawn[request.request_id]
        ids = torch.tensor([request.input_ids + completion.response_ids])
        with torch.no_grad():
            logits = char_policy.model(ids).logits[0, len(request.input_ids) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(1, ids[0, len(request.input_ids) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-3, rtol=0)
        ended = completion.response_ids[-1] in char_policy.eos_token_ids
        assert completion.finish_reason == ("stop" if ended else "length")


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="vLLM is not installed here")
def test_scores_are_those_of_the_trainers_model(vllm_engine, char_policy):
    prompt, response = char_policy.tokenizer("12*3-1=")["input_ids"], [7, 8, 1]
    hf = HfEngine(char_policy.model, char_policy.eos_token_ids, batch_size=1)
    for _ in range(2):
        assert vllm_engine.score(prompt, response) == pytest.approx(hf.score(prompt, response), abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="vLLM is not installed here")
def test_what_is_scored_while_others_are_drawn_loses_none_of_them(vllm_engine):
    for index in range(4):
        vllm_engine.add(Request(f"{index}", [12, 14, 30], index), Sampling(1.0, 1 + 4 * index))
    done = vllm_engine.step()
    vllm_engine.score([12, 14, 30], [7, 8, 1])
    vllm_engine.abandon("3")
    while vllm_engine.busy:
        done += vllm_engine.step()
    assert sorted(completion.request_id for completion in done) == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="vLLM is not installed here")
@pytest.mark.parametrize("serve", ["merged", "adapter"])
def test_an_adapter_is_sampled_with(char_folder, tmp_path, serve):
    config = model_config(serve=serve)
    trained = train_a_little(char_folder, tmp_path / "policy", config)
    engine = open_engine(
        tmp_path / "policy", model=config, rollout=RolloutConfig(engine="vllm"), device=CPU, max_length=32
    )
    prompt, response = [12, 14, 30], [7, 8, 1]
    (expected,) = ParallelPolicy(trained, Ranks(), device=CPU, dtype=torch.float32).score([Example(prompt, response)])
    assert engine.score(prompt, response) == pytest.approx(expected, abs=1e-3)
    (drawn,) = engine.generate([Request("a", prompt, 1)], Sampling(1.0, 8))
    assert drawn.logprobs == pytest.approx(
        HfEngine(trained, frozenset({1}), batch_size=1).score(prompt, drawn.response_ids), abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="vLLM is not installed here")
def test_new_weights_go_in_in_place_the_tied_head_and_the_cached_prefixes_included(char_policy, tmp_path):
    # Large enough for vLLM to keep a packed copy of the head on a CPU.
    config = LlamaConfig(
        vocab_size=4096, hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    save_policy(model, char_policy.tokenizer, tmp_path / "first")
    engine = open_engine(
        tmp_path / "first", model=ModelConfig(), rollout=RolloutConfig(engine="vllm"), device=CPU, max_length=128
    )
    # Longer than a block, so that a second look at the prompt takes it from the cache.
    prompt, response = [12, 14, 30, 3] * 20, [7, 8, 1]
    for name in ("second", "third"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        save_policy(model, char_policy.tokenizer, tmp_path / name)
        engine.reload(tmp_path / name)
        expected = HfEngine(model, frozenset({1}), batch_size=1)
        for _ in range(2):
            assert engine.score(prompt, response) == pytest.approx(expected.score(prompt, response), abs=1e-3)
            (drawn,) = engine.generate([Request("a", prompt, 1)], Sampling(1.0, 8))
            assert drawn.logprobs == pytest.approx(expected.score(prompt, drawn.response_ids), abs=1e-3)


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (4, 8), (8, 8), (65, 128), (512, 512)])
def test_vllm_reserves_room_for_an_adapter_in_the_sizes_it_knows(rank, room):
    assert _room_for(rank) == room


def test_a_rank_that_vllm_cannot_serve_names_the_way_out():
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is 600: .* model\.lora\.serve=merged"):
        _room_for(600)


@pytest.fixture(scope="module")
def vllm_engine(char_folder):
    return open_engine(
        char_folder, model=ModelConfig(), rollout=RolloutConfig(engine="vllm"), device=CPU, max_length=32
    )
