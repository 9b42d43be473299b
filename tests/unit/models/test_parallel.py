import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.models.load import load_policy
from burnish.models.logprobs import plan_batches
from burnish.models.parallel import _EMPTY, ParallelPolicy, Ranks, placed_like, whole, whole_weights
from burnish.stages.sft_batches import Example

CPU = torch.device("cpu")


def policy_of(folder):
    return ParallelPolicy(load_policy(folder).model, Ranks(), device=CPU, dtype=torch.float32)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 6))
def test_shares_are_stretches_that_together_hold_everything_once(costs, world):
    items = list(range(len(costs)))
    shares = [Ranks(rank, world).share(items, costs) for rank in range(world)]
    assert [item for share in shares for item in share] == items


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 6))
def test_no_share_is_further_from_equal_than_one_item(costs, world):
    for rank in range(world):
        share = Ranks(rank, world).share(costs, costs)
        assert abs(sum(share) - sum(costs) / world) <= max(costs)


def test_one_process_never_touches_torch_distributed(char_folder):
    ranks = Ranks()
    assert ranks.total(2.5) == 2.5
    assert ranks.gather(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert ranks.in_step([_EMPTY, _EMPTY]) == [_EMPTY, _EMPTY]
    policy_of(char_folder).clip_gradients(1.0)
    assert not torch.distributed.is_initialized()


def test_an_empty_batch_is_a_backward_pass_without_gradient(char_folder):
    policy = policy_of(char_folder)
    logprobs, entropy = policy(_EMPTY)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert gradients
    assert not any(bool(gradient.any()) for gradient in gradients)


def test_the_gradients_norm_is_cut_to_the_limit_and_reported_as_it_was(char_folder):
    policy = policy_of(char_folder)
    (batch,) = plan_batches(policy.traits, [Example([3, 4], [5, 6])], token_budget=64, share_prompt=False)
    (-100 * policy(batch)[0].sum()).backward()
    before = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).norm().item()
    assert policy.clip_gradients(0.5) == pytest.approx(before, rel=1e-5)
    after = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).norm().item()
    assert after == pytest.approx(0.5, rel=1e-4)


def test_scores_are_the_logprobs_of_a_plain_forward_pass_in_the_order_asked(char_folder):
    policy = policy_of(char_folder)
    examples = [Example([3] * (9 - i), [5 + i, 7], temperature=1.0) for i in range(5)]
    for example, scores in zip(examples, policy.score(examples), strict=True):
        ids = torch.tensor([example.input_ids + example.response_ids])
        with torch.no_grad():
            logprobs = policy.model(ids).logits[0, len(example.input_ids) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(example.response_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(scores), expected, atol=1e-5, rtol=0)


def test_tied_weights_stay_one_tensor_in_the_whole_state(char_folder):
    model = load_policy(char_folder).model
    weights = whole_weights(model)
    assert weights.keys() == model.state_dict().keys()
    assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]
    parameter = model.lm_head.weight
    torch.testing.assert_close(whole(placed_like(parameter, weights["lm_head.weight"])), parameter.detach())
