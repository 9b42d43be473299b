from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from burnish.contracts.errors import ContractError
from burnish.models.fused_head import head_logprobs
from burnish.models.grouping import pack_completions
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.probe import probe_model

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Sample:
    input_ids: list[int]
    response_ids: list[int]
    temperature: float = 1.0


def llama(attention="sdpa", tied=True):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, tie_word_embeddings=tied, initializer_range=0.3, attn_implementation=attention)
    return LlamaForCausalLM(config).eval()


def qwen(attention="sdpa"):
    torch.manual_seed(1)
    config = Qwen2Config(**SIZES, initializer_range=0.3, attn_implementation=attention)
    return Qwen2ForCausalLM(config).eval()


def groups(seed=0, sizes=((7, (3, 1, 9)), (2, (4,)), (12, (1, 1, 8, 5)))):
    generator = torch.Generator().manual_seed(seed)
    tokens = lambda count: torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()  # noqa: E731
    samples = []
    for prompt_length, response_lengths in sizes:
        prompt = tokens(prompt_length)
        samples += [Sample(prompt, tokens(length)) for length in response_lengths]
    return samples


def naive(model, sample):
    """One sequence, whole logits, textbook formulas."""
    logits = model(input_ids=torch.tensor([sample.input_ids + sample.response_ids])).logits[0].double()
    logprobs = (logits / sample.temperature).log_softmax(-1)[len(sample.input_ids) - 1 : -1]
    chosen = logprobs.gather(-1, torch.tensor(sample.response_ids)[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def scored(model, samples, *, token_budget=512, share_prompt=True, chunk_tokens=512):
    """Logprobs and entropies of each sample, in the order of `samples`."""
    results = [None] * len(samples)
    for batch in plan_batches(probe_model(model), samples, token_budget=token_budget, share_prompt=share_prompt):
        logprobs, entropy = token_logprobs(model, batch, chunk_tokens=chunk_tokens)
        for index, one, two in zip(
            batch.order, logprobs.split(batch.lengths), entropy.split(batch.lengths), strict=True
        ):
            results[index] = (one, two)
    return results


def gradients(model, results):
    """Of a loss that weighs every token differently, so that swapped tokens cannot cancel."""
    model.zero_grad()
    weights = torch.linspace(0.5, 1.5, sum(len(logprobs) for logprobs, _ in results))
    torch.cat([logprobs for logprobs, _ in results]).double().mul(weights).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize("share_prompt", [True, False])
@pytest.mark.parametrize("token_budget", [512, 33, 1])
def test_logprobs_entropies_and_gradients_are_those_of_the_plain_forward(make, attention, share_prompt, token_budget):
    model, samples = make(attention), groups()
    results = scored(model, samples, token_budget=token_budget, share_prompt=share_prompt)
    expected = [naive(model, sample) for sample in samples]
    for (logprobs, entropy), (naive_logprobs, naive_entropy) in zip(results, expected, strict=True):
        torch.testing.assert_close(logprobs.double(), naive_logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy.double(), naive_entropy, atol=1e-5, rtol=1e-5)
    for found, wanted in zip(gradients(model, results), gradients(model, expected), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_every_completion_is_divided_by_its_own_temperature():
    model = llama()
    samples = [Sample([5, 6, 7], [8, 9], 0.6), Sample([5, 6, 7], [8, 9], 1.0), Sample([5, 6, 7], [10], 1.7)]
    for sample, (logprobs, entropy) in zip(samples, scored(model, samples), strict=True):
        expected, expected_entropy = naive(model, sample)
        torch.testing.assert_close(logprobs.double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-5, rtol=1e-5)


def test_bfloat16_layers_stay_near_and_leave_weights_and_gradients_in_float32():
    model, samples = llama(), groups()
    (batch,) = plan_batches(probe_model(model), samples, token_budget=512, share_prompt=True)
    exact, _ = token_logprobs(model, batch)
    logprobs, entropy = token_logprobs(model, batch, dtype=torch.bfloat16)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert 0 < (logprobs - exact).abs().max().item() < 0.3
    logprobs.sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_sharing_runs_the_prompt_once_and_never_the_last_token():
    samples = [Sample(list(range(20)), [1, 2, 3]) for _ in range(8)]
    (batch,) = plan_batches(probe_model(llama()), samples, token_budget=512, share_prompt=True)
    assert batch.input_ids.shape == (1, 20 + 8 * 2)
    (alone,) = plan_batches(probe_model(llama()), samples, token_budget=512, share_prompt=False)
    assert alone.input_ids.shape == (8, 22)
    assert alone.branches is None


def test_only_equal_prompts_are_shared():
    samples = [Sample([1, 2, 3], [4, 5]), Sample([1, 2, 4], [4, 5])]
    (batch,) = plan_batches(probe_model(llama()), samples, token_budget=512, share_prompt=True)
    assert batch.input_ids.shape[0] == 2


def test_long_answers_to_a_short_prompt_are_not_joined_into_one_quadratic_row():
    model = llama()
    samples = [Sample([1], [2] * 400) for _ in range(8)]
    batches = plan_batches(probe_model(model), samples, token_budget=4000, share_prompt=True)
    assert max(batch.input_ids.shape[1] for batch in batches) == 400


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=5)), min_size=1, max_size=4),
    st.integers(8, 64),
    st.booleans(),
)
def test_packing_keeps_every_completion_once_within_the_budget(sizes, budget, share):
    samples = groups(seed=3, sizes=sizes)
    batches = pack_completions(samples, token_budget=budget, share_prompt=share, attention_cost=0.01)
    assert sorted(index for batch in batches for index in batch.order) == list(range(len(samples)))
    for batch in batches:
        rows, length = batch.input_ids.shape
        assert rows * length <= budget or len(batch.order) == 1
        assert batch.targets.tolist() == [token for index in batch.order for token in samples[index].response_ids]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 10, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_fused_head_matches_the_naive_one_in_loss_and_gradient(chunk_tokens, with_bias):
    torch.manual_seed(4)
    hidden = torch.randn(10, 8, requires_grad=True)
    weight = torch.randn(11, 8, requires_grad=True)
    bias = torch.randn(11, requires_grad=True) if with_bias else None
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    targets, temperatures = torch.randint(0, 11, (10,)), torch.linspace(0.5, 1.5, 10)
    logprobs, entropy = head_logprobs(hidden, weight, bias, targets, temperatures, chunk_tokens)
    plain = (torch.nn.functional.linear(hidden, weight, bias) / temperatures[:, None]).log_softmax(-1)
    expected = plain.gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1))
    loss = torch.linspace(-1, 1, 10)
    found = torch.autograd.grad((loss * logprobs.exp()).sum(), leaves)
    wanted = torch.autograd.grad((loss * expected.exp()).sum(), leaves)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_the_entropy_is_a_measurement_without_a_gradient():
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    _, entropy = head_logprobs(hidden, weight, None, torch.tensor([0, 1, 2]), torch.ones(3), 2)
    assert not entropy.requires_grad


def test_a_sliding_window_shorter_than_the_sequence_switches_sharing_off_and_stays_exact():
    torch.manual_seed(2)
    config = MistralConfig(**SIZES, sliding_window=12, initializer_range=0.3, attn_implementation="sdpa")
    model = MistralForCausalLM(config).eval()
    samples = groups()
    assert probe_model(model).may_share(12)
    assert not probe_model(model).may_share(13)
    for sample, (logprobs, _) in zip(samples, scored(model, samples), strict=True):
        torch.testing.assert_close(logprobs.double(), naive(model, sample)[0], atol=1e-5, rtol=1e-5)


def test_a_model_that_does_not_obey_a_tree_mask_is_found_out():
    torch.manual_seed(2)
    # Its attention biases come from counting the mask, not from positions.
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
    model = BloomForCausalLM(config).eval()
    samples = groups()
    assert not probe_model(model).may_share(1)
    for sample, (logprobs, _) in zip(samples, scored(model, samples), strict=True):
        torch.testing.assert_close(logprobs.double(), naive(model, sample)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=1.0)),
        lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)),
    ],
)
def test_a_head_that_caps_or_scales_its_logits_is_refused(model):
    torch.manual_seed(2)
    with pytest.raises(ContractError, match="logit cap or scale"):
        probe_model(model().eval())
