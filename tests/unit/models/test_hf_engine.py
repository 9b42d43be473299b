from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.errors import ConfigError
from burnish.models.engine import Request, Sampling
from burnish.models.hf_engine import HfEngine, draw_tokens

TEXTS = ["3+4=", "12+7=", "what is 5 * 3 - 2?\n", "a"]


def requests(tokenizer, per_prompt=5):
    return [
        Request(f"{i}-{j}", tokenizer(text)["input_ids"], 1000 * i + j)
        for i, text in enumerate(TEXTS)
        for j in range(per_prompt)
    ]


def draw(policy, asked, *, batch_size=64, temperature=1.0, max_new_tokens=20, eos=None):
    engine = HfEngine(policy.model, policy.eos_token_ids if eos is None else eos, batch_size=batch_size)
    return {c.request_id: c for c in engine.generate(asked, Sampling(temperature, max_new_tokens))}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward_pass(char_policy, temperature):
    asked = requests(char_policy.tokenizer)
    drawn = draw(char_policy, asked, batch_size=7, temperature=temperature)
    assert drawn.keys() == {request.request_id for request in asked}
    for request in asked:
        completion = drawn[request.request_id]
        ids = torch.tensor([request.input_ids + completion.response_ids])
        with torch.no_grad():
            logits = char_policy.model(ids).logits[0, len(request.input_ids) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(1, ids[0, len(request.input_ids) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=0)


def test_scores_are_the_logprobs_of_what_was_drawn_at_temperature_1(char_policy):
    engine = HfEngine(char_policy.model, char_policy.eos_token_ids, batch_size=4)
    for request in requests(char_policy.tokenizer, 2):
        (drawn,) = engine.generate([request], Sampling(1.0, 12))
        assert engine.score(request.input_ids, drawn.response_ids) == pytest.approx(drawn.logprobs, abs=1e-5)


def test_at_low_temperature_it_draws_what_transformers_finds_greedily(char_policy):
    drawn = draw(char_policy, requests(char_policy.tokenizer, 1), temperature=1e-6)
    for index, text in enumerate(TEXTS):
        ids = char_policy.tokenizer(text, return_tensors="pt")["input_ids"]
        greedy = char_policy.model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
        assert drawn[f"{index}-0"].response_ids == greedy.tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tokens_depend_on_the_seed_and_not_on_company_order_or_refills(char_policy, attention):
    char_policy.model.set_attn_implementation(attention)
    asked = requests(char_policy.tokenizer)
    alone = {request.request_id: draw(char_policy, [request])[request.request_id] for request in asked}
    for batch_size, order in ((64, asked), (3, asked), (7, asked[::-1])):
        together = draw(char_policy, order, batch_size=batch_size)
        for name, completion in alone.items():
            assert together[name].response_ids == completion.response_ids
            assert together[name].finish_reason == completion.finish_reason
    assert len({tuple(completion.response_ids) for completion in alone.values()}) > 15


def test_a_groups_prompt_is_run_once(char_policy):
    seen = Counter()
    handle = char_policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update({int(kwargs["input_ids"].shape[1]): kwargs["input_ids"].shape[0]}),
        with_kwargs=True,
    )
    ids = char_policy.tokenizer(TEXTS[2])["input_ids"]
    draw(char_policy, [Request(str(seed), ids, seed) for seed in range(8)], batch_size=3, max_new_tokens=4)
    handle.remove()
    assert seen[len(ids)] == 1


def test_any_end_of_sequence_id_stops_and_is_kept(char_policy):
    ends = frozenset(range(20, 60))
    drawn = draw(char_policy, requests(char_policy.tokenizer), eos=ends)
    reasons = Counter(completion.finish_reason for completion in drawn.values())
    assert reasons["stop"] > 10
    for completion in drawn.values():
        *body, last = completion.response_ids
        assert not ends & set(body)
        assert (last in ends) == (completion.finish_reason == "stop")
        assert len(completion.logprobs) == len(completion.response_ids)


def test_a_completion_of_one_token_needs_no_decoding(char_policy):
    drawn = draw(char_policy, requests(char_policy.tokenizer), batch_size=4, max_new_tokens=1)
    assert len(drawn) == 20
    assert {len(completion.response_ids) for completion in drawn.values()} == {1}


def test_no_requests_give_no_completions(char_policy):
    assert draw(char_policy, []) == {}


def test_a_sample_without_a_finite_logprob_is_aborted_and_its_neighbours_are_not(char_policy):
    poison = char_policy.tokenizer.convert_tokens_to_ids("~")
    with torch.no_grad():
        weight = char_policy.model.get_input_embeddings().weight
        head = torch.nn.Linear(*reversed(weight.shape), bias=False)
        head.weight.copy_(weight)
        char_policy.model.set_output_embeddings(head)
        weight[poison] = float("nan")
    good = requests(char_policy.tokenizer, 3)
    before = draw(char_policy, good, batch_size=2, max_new_tokens=6)
    bad = [Request(f"bad-{i}", char_policy.tokenizer("1~2=")["input_ids"], i) for i in range(4)]
    mixed = [request for pair in zip(good, bad * 3, strict=True) for request in pair]
    renamed = [Request(f"{i}/{r.request_id}", r.input_ids, r.seed) for i, r in enumerate(mixed)]
    after = draw(char_policy, renamed, batch_size=2, max_new_tokens=6)
    for name, completion in after.items():
        original = name.partition("/")[2]
        if original.startswith("bad"):
            assert completion.finish_reason == "abort"
        elif poison not in before[original].response_ids:
            assert completion.response_ids == before[original].response_ids
            assert completion.finish_reason != "abort"


def test_truncated_sampling_is_refused():
    with pytest.raises(ConfigError, match=r"top_p is 0\.9"):
        Sampling(1.0, 8, top_p=0.9)
    with pytest.raises(ConfigError, match="top_k is 5"):
        Sampling(1.0, 8, top_k=5)


def test_the_drawn_token_is_the_one_whose_interval_holds_the_uniform():
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(5, 3)
    uniforms = torch.tensor([0.0, 0.499, 0.501, 0.74, 0.99], dtype=torch.float64)
    tokens, logprobs = draw_tokens(logits, uniforms, 1.0)
    assert tokens.tolist() == [0, 0, 1, 1, 2]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25]))


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, 5)
    uniforms = torch.tensor([0.0, 0.4999999, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens, _ = draw_tokens(logits, uniforms, 1.0)
    assert tokens.tolist() == [1, 1, 3, 3]


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=9), st.floats(0, 1, exclude_max=True), st.floats(0.1, 3))
def test_temperature_divides_the_logits_before_the_draw(logits, uniform, temperature):
    row = torch.tensor([logits])
    tokens, logprobs = draw_tokens(row, torch.tensor([uniform], dtype=torch.float64), temperature)
    expected = torch.log_softmax(row / temperature, -1)
    torch.testing.assert_close(logprobs[0], expected[0, tokens[0]])
    cdf = expected.double().exp().cumsum(-1)[0]
    assert cdf[tokens[0]] >= uniform * (1 - 1e-6)
    assert tokens[0] == 0 or cdf[tokens[0] - 1] <= uniform * (1 + 1e-6) + 1e-12


def test_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens, _ = draw_tokens(probabilities.log().expand(1000, 4), uniforms, 1.0)
    assert torch.bincount(tokens).tolist() == [100, 200, 300, 400]
