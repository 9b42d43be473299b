import math

import pytest
import torch
from loss_cases import ADVANTAGES, KEPT, MASK, NEW, OLD, ROLLOUT, SETTINGS, configured, every_loss, step_loss

from burnish.contracts.algorithm import LossConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.presets import PRESETS, preset_fields
from burnish.maths.aggregation import token_weights
from burnish.maths.losses import policy_loss, value_loss
from burnish.maths.surrogates import clip_loss, sapo_loss


def test_golden_ratios_and_clip_share():
    loss = policy_loss(NEW, OLD, ADVANTAGES, MASK, SETTINGS["clip"])
    expected = [1.349859, 1, 0.606531, 1.349859, 0.904837, 1, 0.496585]
    assert loss.ratio[KEPT].tolist() == pytest.approx(expected, abs=1e-6)
    assert float((loss.clipped_low | loss.clipped_high)[KEPT].float().mean()) == pytest.approx(0.285714, abs=1e-6)
    assert loss.clipped_high.nonzero().tolist() == [[0, 0]]
    assert loss.clipped_low.nonzero().tolist() == [[1, 3]]


@pytest.mark.parametrize(
    ("high", "aggregation", "expected"),
    [
        (0.2, "token-mean", 0.178309),
        (0.2, "seq-mean-token-mean", 0.039082),
        (0.2, "seq-mean-token-sum", 0.624083),
        (0.2, "seq-mean-token-sum-norm", 0.156021),
        (0.2, "prompt-mean", 0.039082),
        (0.28, "token-mean", 0.166881),
        (0.28, "seq-mean-token-mean", 0.025749),
        (0.28, "seq-mean-token-sum", 0.584083),
        (0.28, "seq-mean-token-sum-norm", 0.146021),
    ],
)
def test_golden_clip_losses(high, aggregation, expected):
    assert float(step_loss(configured("clip", high=high), aggregation)) == pytest.approx(expected, abs=1e-6)


def test_golden_gspo_clips_whole_responses():
    settings = configured("clip", ratio="sequence", low=3e-4, high=4e-4)
    new = NEW.clone().requires_grad_()
    loss = policy_loss(new, OLD, ADVANTAGES, MASK, settings)
    assert loss.ratio[:, 0].tolist() == pytest.approx([0.935507, 0.882497], abs=1e-6)
    assert loss.loss[0, :3].tolist() == pytest.approx([-0.935507] * 3, abs=1e-6)
    assert loss.loss[1].tolist() == pytest.approx([0.9997] * 4, abs=1e-6)
    assert loss.clipped_low.tolist() == [[False] * 4, [True] * 4]
    total = (token_weights(MASK, "seq-mean-token-mean") * loss.loss).sum()
    assert total.item() == pytest.approx(0.032097, abs=1e-6)
    total.backward()
    assert (new.grad[1] == 0).all()
    # d/d pi_t of -s / B with s = exp(mean of pi - old): -s / (B L).
    assert new.grad[0].tolist() == pytest.approx([-0.935507 / 6] * 3 + [0], abs=1e-6)


def test_golden_cispo_loss():
    assert float(step_loss(configured("cispo", low=1.0, high=0.28), "token-mean")) == pytest.approx(0.053761, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"), [(5.0, -1.0, 3.0), (2.0, -1.0, 2.0), (0.5, -1.0, 0.8), (5.0, 1.0, -1.2)]
)
def test_golden_dual_clip(ratio, advantage, expected):
    loss = clip_loss(torch.tensor([ratio]).log(), torch.tensor([advantage]), 0.2, 0.2, dual_clip=3.0)
    assert loss.loss.item() == pytest.approx(expected, abs=1e-6)
    assert loss.clipped_high.item() == (ratio == 5.0)
    assert loss.clipped_low.item() == (ratio == 0.5)


def test_golden_dppo_masks_only_the_last_token_of_the_second_row():
    loss = policy_loss(NEW, ROLLOUT, ADVANTAGES, MASK, configured("dppo_tv"))
    assert loss.clipped_low.nonzero().tolist() == [[1, 3]]
    assert not loss.clipped_high.any()
    assert float(NEW[1, 3].exp() - ROLLOUT[1, 3].exp()) == pytest.approx(-0.412, abs=1e-3)
    assert loss.loss[1, 3] == 0.0
    assert loss.loss[1, 0].item() == pytest.approx(math.exp(0.3) * -0.3, abs=1e-6)


def test_dppo_masks_by_what_may_be_lost_below_and_gained_above_and_bounds_its_weight():
    # Probabilities move by +.15, -.15 and +.361; the last ratio is e^4.
    old = torch.tensor([[0.5, 0.5, math.exp(-5.0)]]).log()
    new = torch.tensor([[0.65, 0.35, math.exp(-1.0)]]).log()
    settings = configured("dppo_tv", low=0.2, high=0.1)
    better, worse = (
        policy_loss(new, old, torch.full((1, 3), sign), torch.ones(1, 3), settings) for sign in (1.0, -1.0)
    )
    assert better.clipped_high.tolist() == [[True, False, True]]
    assert not better.clipped_low.any()
    assert not (worse.clipped_low | worse.clipped_high).any()
    assert worse.loss[0, 2].item() == pytest.approx(20 * -1.0)
    assert better.loss[0, 1].item() == pytest.approx(-0.7 * math.log(0.35))


def test_sapo_at_ratio_one_has_the_policy_gradient_and_fades_to_both_sides():
    log_ratio = torch.tensor([0.0, 0.0, 2.0, -2.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    loss = sapo_loss(log_ratio, advantages, 1.0, 1.05)
    assert loss.loss[:2].tolist() == pytest.approx([-2.0, 2.0 / 1.05])
    loss.loss.sum().backward()
    assert log_ratio.grad[:2].tolist() == pytest.approx([-1.0, 1.0])
    assert -1 < log_ratio.grad[2] < 0
    assert -1 < log_ratio.grad[3] < 0


def test_gmpo_is_the_geometric_mean_of_the_clipped_ratios():
    # Positive row: min(delta, .25) = .25, 0, -.5. Negative row: max(delta, -.25) = .3, -.1, 0, -.25.
    loss = policy_loss(NEW, OLD, ADVANTAGES, MASK, SETTINGS["gmpo"])
    assert loss.loss[0, :3].tolist() == pytest.approx([-math.exp(-0.25 / 3)] * 3, abs=1e-6)
    assert loss.loss[1].tolist() == pytest.approx([math.exp(-0.05 / 4)] * 4, abs=1e-6)
    assert loss.clipped_high.nonzero().tolist() == [[0, 0]]
    assert loss.clipped_low.nonzero().tolist() == [[1, 3]]


def test_gmpo_of_sequences_clips_the_ratio_of_the_response_in_log_space():
    # Mean log-ratios -.066667 and -.125: the second leaves the range of .1 on the side that a negative sample clips.
    loss = policy_loss(NEW, OLD, ADVANTAGES, MASK, SETTINGS["gmpo of sequences"])
    assert loss.loss[0, :3].tolist() == pytest.approx([-math.exp(-0.2 / 3)] * 3, abs=1e-6)
    assert loss.loss[1].tolist() == pytest.approx([math.exp(-0.1)] * 4, abs=1e-6)
    assert loss.clipped_low.tolist() == [[False] * 4, [True] * 4]


@every_loss
def test_equal_policies_have_ratio_one_nothing_clipped_and_the_policy_gradient(settings):
    new = NEW.clone().requires_grad_()
    loss = policy_loss(new, NEW, ADVANTAGES, MASK, settings)
    assert (loss.ratio == 1).all()
    assert not (loss.clipped_low | loss.clipped_high).any()
    loss.loss.sum().backward()
    torch.testing.assert_close(new.grad, -ADVANTAGES * MASK)


@every_loss
def test_advantage_zero_gives_no_gradient_and_nothing_to_clip(settings):
    new = NEW.clone().requires_grad_()
    loss = policy_loss(new, OLD, torch.zeros(2, 4), MASK, settings)
    loss.loss.sum().backward()
    assert (loss.loss == 0).all()
    # cispo reports the weight it clips, whatever the advantage.
    assert settings.surrogate == "cispo" or not (loss.clipped_low | loss.clipped_high).any()
    assert (new.grad == 0).all()


@every_loss
def test_what_stands_outside_the_mask_changes_nothing(settings):
    def run(filler):
        new = torch.where(KEPT, NEW, filler).requires_grad_()
        old, advantages = torch.where(KEPT, OLD, filler), torch.where(KEPT, ADVANTAGES, filler)
        loss = policy_loss(new, old, advantages, MASK, settings)
        loss.loss.sum().backward()
        return loss.loss, new.grad

    (loss, gradient), (poisoned, poisoned_gradient) = run(0.0), run(math.nan)
    assert torch.equal(loss, poisoned)
    assert torch.equal(gradient, poisoned_gradient)
    assert loss[0, 3] == 0
    assert gradient[0, 3] == 0


@every_loss
@pytest.mark.parametrize("gap", [1e3, -1e3])
def test_an_absurd_log_ratio_stays_finite(settings, gap):
    new = torch.full((1, 2), gap, requires_grad=True)
    for advantage in (-1.0, 1.0):
        loss = policy_loss(new, torch.zeros(1, 2), torch.full((1, 2), advantage), torch.ones(1, 2), settings)
        (gradient,) = torch.autograd.grad(loss.loss.sum(), new)
        assert gradient.isfinite().all()
        if settings.surrogate != "dppo_tv":
            assert loss.loss.isfinite().all()


@every_loss
def test_single_precision_agrees_with_double_precision(settings):
    generator = torch.Generator().manual_seed(3)
    new = -3 * torch.rand(6, 50, generator=generator, dtype=torch.float64)
    old = new + 0.3 * torch.randn(6, 50, generator=generator, dtype=torch.float64)
    advantages = torch.randn(6, 1, generator=generator, dtype=torch.float64).expand(6, 50)
    mask = torch.rand(6, 50, generator=generator) < 0.8
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = new.to(dtype).requires_grad_()
        loss = policy_loss(leaf, old.to(dtype), advantages.to(dtype), mask, settings)
        assert loss.loss.dtype == dtype
        total = (token_weights(mask, "seq-mean-token-mean") * loss.loss).sum()
        total.backward()
        results.append((total.detach().double(), leaf.grad.double()))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    # A token within rounding of a clip bound may fall to either side.
    differs = ((results[0][1] - results[1][1]).abs() > 1e-6).double().mean()
    assert differs < 0.005


@pytest.mark.parametrize("name", ["clip", "cispo", "gspo", "gmpo", "dppo_tv"])
def test_the_clip_factor_scales_both_ranges(name):
    settings = SETTINGS[name]
    halved = settings.model_copy(update={"clip_low": settings.clip_low / 2, "clip_high": settings.clip_high / 2})
    gentle, want = (
        policy_loss(NEW, OLD, ADVANTAGES, MASK, settings, clip_factor=0.5),
        policy_loss(NEW, OLD, ADVANTAGES, MASK, halved),
    )
    assert torch.equal(gentle.loss, want.loss)
    assert torch.equal(gentle.clipped_low, want.clipped_low)
    assert not torch.equal(gentle.loss, policy_loss(NEW, OLD, ADVANTAGES, MASK, settings).loss)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_loss(name):
    settings = LossConfig(**preset_fields(name)["loss"])
    assert policy_loss(NEW, OLD, ADVANTAGES, MASK, settings).loss.isfinite().all()


def test_empty_fields_and_a_dual_clip_without_its_surrogate_are_refused():
    with pytest.raises(ConfigError, match=r"update\.preset"):
        policy_loss(NEW, OLD, ADVANTAGES, MASK, LossConfig(surrogate="clip"))
    with pytest.raises(ConfigError, match=r"dual_clip=3 with update\.loss\.surrogate=cispo"):
        policy_loss(NEW, OLD, ADVANTAGES, MASK, configured("cispo", dual_clip=3.0))
    with pytest.raises(ConfigError, match="above 1"):
        policy_loss(NEW, OLD, ADVANTAGES, MASK, configured("clip", dual_clip=0.5))


def test_golden_value_loss():
    values, old, returns = torch.tensor([0.5, 1.0]), torch.tensor([0.1, 0.9]), torch.tensor([1.0, 0.0])
    loss = value_loss(values, old, returns, clip=0.2)
    assert loss.tolist() == pytest.approx([0.245, 0.5])
    assert float(loss.mean()) == pytest.approx(0.3725)
    assert value_loss(values, old, returns, clip=0.0).tolist() == pytest.approx([0.125, 0.5])
