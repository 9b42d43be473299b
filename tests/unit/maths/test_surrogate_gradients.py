import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import ADVANTAGES, KEPT, MASK, NEW, OLD, SETTINGS, step_loss

from burnish.maths.losses import policy_loss, value_loss
from burnish.maths.ratio import sequence_log_ratio


def test_each_surrogate_has_the_gradient_of_its_formula():
    # d loss / d pi by hand at two tokens: row 0 column 2 (ratio .606531, A = 1) and row 1 column 0 (1.349859, A = -1).
    low, high = math.exp(-0.5), math.exp(0.3)

    def sapo(ratio, tau):
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return 4 * gate * (1 - gate) * ratio

    expected = {
        "clip": (-low, high),
        "dual_clip": (-low, 0.0),
        "cispo": (-0.8, 1.2),
        "sapo": (-sapo(low, 1.0), sapo(high, 1.05)),
        "reinforce": (-1.0, 1.0),
        "gmpo": (-math.exp(-0.25 / 3), math.exp(-0.05 / 4)),
        "dppo_tv": (-low, high),
        "gspo": (-0.935507, 0.0),
        "cispo of sequences": (-0.935507, 0.9),
    }
    for name, (first, second) in expected.items():
        new = NEW.clone().requires_grad_()
        policy_loss(new, OLD, ADVANTAGES, MASK, SETTINGS[name]).loss.sum().backward()
        assert [new.grad[0, 2].item(), new.grad[1, 0].item()] == pytest.approx([first, second], abs=1e-6), name


@pytest.mark.parametrize("surrogate", ["sequence clip", "gmpo"])
def test_token_forms_have_the_gradient_of_the_sequence_form(surrogate):
    def sequence_form(new):
        kept = KEPT.double()
        lengths = kept.sum(1)
        difference, advantages = new - OLD.double(), ADVANTAGES[:, 0].double()
        if surrogate == "gmpo":
            sign = advantages[:, None]
            difference = sign * torch.minimum(sign * difference, sign * difference.clamp(-0.25, 0.25))
        ratio = ((difference * kept).sum(1) / lengths).exp()
        if surrogate == "gmpo":
            return (-advantages * ratio).mean()
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.9, 1.1)).mean()

    token_form = SETTINGS["gmpo" if surrogate == "gmpo" else "gspo"]
    gradients = []
    for loss in (sequence_form, lambda new: step_loss(token_form, "seq-mean-token-mean", new, OLD.double())):
        new = NEW.double().requires_grad_()
        value = loss(new)
        value.backward()
        gradients.append((value.detach(), new.grad))
    torch.testing.assert_close(gradients[0][0], gradients[1][0], atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(gradients[0][1], gradients[1][1], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["clip", "dual_clip", "sapo"])
def test_losses_that_are_functions_of_the_ratio_pass_the_numerical_gradient_check(name):
    new, old, advantages = NEW.double().requires_grad_(), OLD.double(), ADVANTAGES.double()
    assert torch.autograd.gradcheck(lambda new: policy_loss(new, old, advantages, MASK, SETTINGS[name]).loss, new)


@pytest.mark.parametrize("name", [name for name in SETTINGS if "cispo" not in name])
@settings(max_examples=30)
@given(st.data())
def test_tokens_marked_as_clipped_are_exactly_those_without_gradient(name, data):
    numbers = st.floats(-0.75, 0.75, width=32).map(lambda value: value - 1.0)
    rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=2)
    new, old = torch.tensor(data.draw(rows)), torch.tensor(data.draw(rows))
    advantages = torch.tensor(data.draw(st.lists(st.sampled_from([-2.0, 0.5]), min_size=2, max_size=2)))
    new.requires_grad_()
    loss = policy_loss(new, old, advantages[:, None].expand(2, 3), torch.ones(2, 3), SETTINGS[name])
    loss.loss.sum().backward()
    assert (loss.clipped_low | loss.clipped_high).tolist() == (new.grad == 0).tolist()
    assert not (loss.clipped_low & loss.clipped_high).any()
    assert (loss.ratio[loss.clipped_high] > 1).all()


def test_cispo_keeps_a_gradient_on_the_tokens_whose_weight_it_clips():
    new = NEW.clone().requires_grad_()
    loss = policy_loss(new, OLD, ADVANTAGES, MASK, SETTINGS["cispo"])
    loss.loss.sum().backward()
    assert loss.clipped_high.sum() == 2
    assert loss.clipped_low.sum() == 2
    assert (new.grad[KEPT] != 0).all()


def test_the_value_loss_passes_the_numerical_gradient_check():
    values = torch.tensor([0.5, 1.0, 0.15], dtype=torch.float64, requires_grad=True)
    old, returns = torch.tensor([0.1, 0.9, 0.1]).double(), torch.tensor([1.0, 0.0, 0.3]).double()
    assert torch.autograd.gradcheck(lambda values: value_loss(values, old, returns, 0.2), values)


def test_the_log_ratio_of_a_sequence_is_a_mean_over_its_trained_tokens_alone():
    new = torch.tensor([[-1.0, -3.0, 7.0, -2.0], [1.0, 1.0, 1.0, 1.0]], requires_grad=True)
    old = torch.tensor([[-1.5, -3.1, -9.0, -1.7], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0]])
    ratios = sequence_log_ratio(new, old, mask)
    assert ratios[0].tolist() == pytest.approx([0.1] * 4)
    assert ratios[1].tolist() == [0.0] * 4
    # Each token answers for its own logprob.
    (ratios * torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().backward()
    assert new.grad[0].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("surrogate", ["clip", "gmpo"])
def test_a_log_ratio_beyond_twenty_is_clamped_and_counted_as_cut(surrogate):
    # A negative advantage: neither surrogate clips a high ratio then.
    new = torch.tensor([[30.0, 0.0]], requires_grad=True)
    loss = policy_loss(new, torch.zeros(1, 2), -torch.ones(1, 2), torch.ones(1, 2), SETTINGS[surrogate])
    loss.loss.sum().backward()
    assert loss.clipped_high.tolist() == [[True, False]]
    assert (new.grad == 0).tolist() == [[True, False]]
