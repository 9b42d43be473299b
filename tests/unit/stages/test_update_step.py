import dataclasses

import pytest
import torch
from update_lab import Lab, assert_same_gradient, norm

from burnish.contracts.presets import PRESETS
from burnish.stages.update_batch import Batch


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("lab"))


def with_masked_row(batch: Batch) -> Batch:
    """`batch` and its first row once more, of which no token is trained."""
    more = batch.take([*range(len(batch.rollouts)), 0])
    more.mask[-1] = False
    return more


@pytest.mark.parametrize("preset", PRESETS)
def test_micro_batches_and_sharing_change_neither_loss_nor_gradient(lab, preset):
    batch = lab.batch(preset=preset)
    whole, gradient = lab.step(batch, preset=preset)
    assert whole["ratio_max"] > 1.05
    for token_budget, share_prompt in ((4096, False), (40, True), (16, False)):
        split, split_gradient = lab.step(batch, preset=preset, token_budget=token_budget, share_prompt=share_prompt)
        for key in ("loss", "policy_loss", "entropy", "tokens", "ratio_mean", "clip_fraction"):
            assert split[key] == pytest.approx(whole[key], abs=1e-5, rel=1e-4), key
        assert_same_gradient(split_gradient, gradient)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_fully_masked_row_changes_nothing(lab, preset):
    batch = lab.batch(preset=preset)
    alone, gradient = lab.step(batch, preset=preset)
    more, more_gradient = lab.step(with_masked_row(batch), preset=preset)
    assert more["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    assert more["tokens"] == alone["tokens"]
    assert_same_gradient(more_gradient, gradient)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_recorded_for_observations_is_without_meaning(lab, preset):
    batch = lab.batch(preset=preset)
    mask = batch.mask.clone()
    mask[::2, 1:3] = False
    batch = dataclasses.replace(batch, mask=mask, advantages=batch.advantages * mask)
    expected, gradient = lab.step(batch, preset=preset)
    odd = dataclasses.replace(
        batch,
        old_logprobs=torch.where(mask, batch.old_logprobs, -17.0),
        rollout_logprobs=torch.where(mask, batch.rollout_logprobs, -3.0),
        advantages=torch.where(mask, batch.advantages, 99.0),
    )
    changed, changed_gradient = lab.step(odd, preset=preset)
    assert changed["tokens"] == float(mask.sum())
    assert changed["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert_same_gradient(changed_gradient, gradient)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "prompt-mean"])
def test_aggregation_follows_the_settings(lab, aggregation):
    batch = lab.batch(preset="reinforce")
    figures, _ = lab.step(batch, preset="reinforce", loss={"aggregation": aggregation}, correction={"mode": "none"})
    trainer = lab.trainer(preset="reinforce")
    with torch.no_grad():
        losses = [
            -float(batch.advantages[row, 0]) * trainer.policy(pack)[0]
            for row in range(len(batch.rollouts))
            for pack in trainer._share(batch, [row])
        ]
    if aggregation == "token-mean":
        expected = torch.cat(losses).mean()
    elif aggregation == "seq-mean-token-sum":
        expected = torch.stack([loss.sum() for loss in losses]).mean()
    else:
        groups = batch.group_ids()
        prompts = [[loss for loss, group in zip(losses, groups, strict=True) if group == name] for name in set(groups)]
        expected = torch.stack([torch.cat(prompt).mean() for prompt in prompts]).mean()
    assert figures["loss"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("preset", ["dapo", "gspo", "vapo", "rloo"])
def test_the_parts_of_the_gradient_by_sign_add_up_to_it_and_measuring_changes_nothing(lab, preset):
    fields = {"preset": preset, "kl": {"coef": 0.0}}
    batch = lab.batch(**fields)
    figures, gradient = lab.step(batch, **fields)
    measured, measured_gradient = lab.step(batch, measure_signs=True, **fields)
    for name, value in gradient.items():
        assert torch.equal(measured_gradient[name], value)
    assert figures["grad_norm_positive"] is None
    assert {key for key in figures if figures[key] != measured[key]} == {
        "grad_norm_positive", "grad_norm_negative", "negative_gradient_share"
    }  # fmt: skip

    def part(sign):
        """Gradient of the tokens of one sign alone."""
        kept = batch.advantages * (sign * batch.advantages > 0)
        return lab.step(dataclasses.replace(batch, advantages=kept), **fields)[1]

    positive, negative = part(1), part(-1)
    assert_same_gradient({name: positive[name] + negative[name] for name in gradient}, gradient)
    assert measured["grad_norm_positive"] == pytest.approx(norm(positive), rel=1e-3)
    assert measured["grad_norm_negative"] == pytest.approx(norm(negative), rel=1e-3)
    share = norm(negative) / (norm(negative) + norm(positive))
    assert measured["negative_gradient_share"] == pytest.approx(share, rel=1e-3)


def test_a_kl_term_is_no_part_of_either_sign_and_stays_in_the_gradient(lab):
    batch = lab.batch(preset="grpo", kl={"coef": 0.5})
    fields = {"preset": "grpo", "kl": {"coef": 0.5}}
    _, gradient = lab.step(batch, **fields)
    measured, measured_gradient = lab.step(batch, measure_signs=True, **fields)
    assert_same_gradient(measured_gradient, gradient)
    without, _ = lab.step(batch, measure_signs=True, preset="grpo", kl={"coef": 0.0})
    assert measured["grad_norm"] != pytest.approx(without["grad_norm"], rel=1e-2)
    for key in ("grad_norm_positive", "grad_norm_negative"):
        assert measured[key] == pytest.approx(without[key], rel=1e-5)


def test_signs_are_measured_only_where_a_micro_batch_holds_both(lab):
    batch = lab.batch(preset="dr_grpo")
    rows = batch.row_advantages()
    one_sided = dataclasses.replace(batch, advantages=batch.advantages.abs())
    assert lab.step(one_sided, preset="dr_grpo", measure_signs=True)[0]["grad_norm_positive"] is None
    # One sample a micro-batch: none holds both.
    figures, _ = lab.step(batch, preset="dr_grpo", measure_signs=True, token_budget=16, share_prompt=False)
    assert figures["negative_gradient_share"] is None
    assert {bool(value > 0) for value in rows} == {True, False}


def test_the_likelihood_loss_pulls_up_positive_samples_only(lab):
    fields = {"preset": "dapo", "correction": {"mode": "none"}}
    batch = lab.batch(**fields)
    without, gradient = lab.step(batch, **fields)
    with_it, more = lab.step(batch, positive={"nll_weight": 0.5}, **fields)
    positive = [row for row, value in enumerate(batch.row_advantages()) if value > 0]
    trainer = lab.trainer(**fields)
    with torch.no_grad():
        logprobs = torch.cat([trainer.policy(pack)[0] for pack in trainer._share(batch, positive)])
    assert with_it["loss"] - without["loss"] == pytest.approx(-0.5 * float(logprobs.mean()), rel=1e-4)
    assert norm({name: more[name] - gradient[name] for name in gradient}) > 0.1


def test_kl_in_the_loss_is_weighed_and_off_policy_kl_multiplies_it_by_the_ratio(lab):
    fields = {"preset": "dapo", "filters": {"truncated": False}}
    batch = lab.batch(kl={"coef": 1.0}, **fields)
    zero = dataclasses.replace(batch, advantages=torch.zeros_like(batch.advantages))
    plain, _ = lab.step(zero, kl={"coef": 0.25}, **fields)
    assert plain["policy_loss"] == 0
    assert plain["loss"] == pytest.approx(0.25 * plain["kl"], rel=1e-5)
    weighted, _ = lab.step(zero, kl={"coef": 0.25, "off_policy": True}, **fields)
    assert weighted["loss"] != pytest.approx(plain["loss"], rel=1e-3)
    same_value, gradient_k3 = lab.step(zero, kl={"coef": 0.25, "estimator": "k3+"}, **fields)
    _, gradient_k2 = lab.step(zero, kl={"coef": 0.25, "estimator": "k2"}, **fields)
    assert same_value["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert_same_gradient(gradient_k3, gradient_k2)


def test_a_clip_factor_narrows_the_clip_ranges(lab):
    batch = lab.batch(preset="dapo")
    wide, _ = lab.step(batch, preset="dapo")
    narrow, _ = lab.step(batch, preset="dapo", clip_factor=0.1)
    same, _ = lab.step(batch, preset="dapo", loss={"clip_low": 0.02, "clip_high": 0.028})
    assert narrow["clip_fraction"] > wide["clip_fraction"]
    assert narrow["loss"] == pytest.approx(same["loss"], rel=1e-6)


def test_a_sample_that_the_policy_has_left_is_not_pushed_down_further(lab):
    fields = {"preset": "dr_grpo"}
    batch = lab.batch(**fields)
    old = batch.old_logprobs.clone()
    worst = int(batch.row_advantages().argmin())
    best = int(batch.row_advantages().argmax())
    old[[worst, best]] += 5.0
    batch = dataclasses.replace(batch, old_logprobs=old, rollout_logprobs=old)
    kept, _ = lab.step(batch, **fields)
    rejected, gradient = lab.step(batch, correction={"reject_off_policy": 1.0}, **fields)
    assert (kept["rejected_off_policy"], rejected["rejected_off_policy"]) == (0, 1)
    # Weight 0, and still in the denominator.
    advantages = batch.advantages.clone()
    advantages[worst] = 0.0
    _, expected = lab.step(dataclasses.replace(batch, advantages=advantages), **fields)
    assert_same_gradient(gradient, expected)


def test_another_term_is_added_to_the_loss_of_every_row(lab):
    batch = lab.batch(preset="dr_grpo")
    trainer = lab.trainer(preset="dr_grpo", token_budget=40)
    seen = []

    def extra(micro, weights, states):
        seen.extend(row.sample_id for row in micro.rollouts)
        assert states.shape[0] == int(micro.inside.sum())
        assert weights.shape == micro.mask.shape
        return (weights[micro.inside] * states.sum(dim=-1)).sum()

    rows = range(len(batch.rollouts))
    plain = trainer.step(batch, rows, rate=0.0)
    trainer = dataclasses.replace(trainer, extra_loss=extra)
    more = trainer.step(batch, rows, rate=0.0)
    assert sorted(seen) == [row.sample_id for row in batch.rollouts]
    assert more["policy_loss"] == pytest.approx(plain["policy_loss"], abs=1e-6)
    assert more["loss"] != pytest.approx(plain["loss"], abs=1e-3)


def test_divergence_is_zero_before_a_step_and_grows_with_its_size(lab):
    batch = lab.batch(preset="dr_grpo")
    trainer = lab.trainer(preset="dr_grpo", token_budget=40)
    old = trainer.divergence(batch)
    with torch.no_grad():
        logprobs = batch.trainer_logprobs.clone()
        for pack in trainer._share(batch, range(len(batch.rollouts))):
            scored = torch.split(trainer.policy(pack)[0], pack.lengths)
            for row, values in zip(pack.order, scored, strict=True):
                logprobs[row, : len(values)] = values
    now = dataclasses.replace(batch, trainer_logprobs=logprobs)
    assert old > 1e-3
    assert trainer.divergence(now) == pytest.approx(0.0, abs=1e-7)
    trainer.step(now, range(len(batch.rollouts)), rate=0.05)
    assert trainer.divergence(now) > 1e-5
