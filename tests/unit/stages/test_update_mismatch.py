import pytest
import torch
from rl_inputs import changed, config_of, make_workplace, read_logprobs, read_rollouts, write_rollouts


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


def perturb(work, size):
    """A sampler whose logprobs are off by noise of this size."""
    chance = torch.Generator().manual_seed(0)
    rows = []
    for row in read_rollouts(work):
        noise = size * torch.randn(len(row.response_ids), generator=chance)
        rows.append(changed(row, rollout_logprobs=(torch.tensor(row.rollout_logprobs) + noise).tolist()))
    write_rollouts(work, rows)


def first_step(work, **fields):
    config = config_of(**{"preset": "dapo", "learning_rate": 0.0, **fields})
    work.logprob(config)
    return work.update(config).series[0]


# The most common hidden fault: ratios from the sampler's own logprobs clip tokens before anything was learned.
def test_recomputed_logprobs_give_ratios_of_one_where_the_sampler_s_own_do_not(work):
    perturb(work, 0.2)
    recomputed = first_step(work)
    assert recomputed["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert recomputed["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert recomputed["clip_fraction"] == 0
    assert recomputed["correction_mean"] != pytest.approx(1.0, abs=1e-3)
    assert recomputed["ess"] < 0.99

    bypass = first_step(work, correction={"bypass": True})
    assert bypass["ratio_max"] > 1.3
    assert bypass["clip_fraction"] > 0.02
    # The clip holds the mismatch now, so no weight does; it is measured all the same.
    assert bypass["correction_mean"] == 1.0
    assert bypass["mismatch"] == recomputed["mismatch"] == pytest.approx(0.16, abs=0.04)


@pytest.mark.parametrize("preset", ["dapo", "gspo"])
def test_a_sampler_that_agrees_needs_no_correction(work, preset):
    weights = []
    for mode in ("none", "token_tis", "sequence_tis", "token_mask", "sequence_mask", "geometric_mask"):
        config = config_of(preset=preset, correction={"mode": mode})
        work.logprob(config)
        row = work.update(config).series[0]
        assert row["correction_mean"] == pytest.approx(1.0, abs=1e-4)
        assert row["rejected_sequences"] == 0
        weights.append(row["loss"])
    assert weights == pytest.approx([weights[0]] * len(weights), abs=1e-5)


def test_the_importance_weight_is_capped_and_multiplies_the_token_loss(work):
    # A sampler that thought every token exp(1) times less likely than the trainer does.
    write_rollouts(
        work,
        [changed(row, rollout_logprobs=[value - 1 for value in row.rollout_logprobs]) for row in read_rollouts(work)],
    )
    plain = first_step(work, correction={"mode": "none"})
    capped = first_step(work, correction={"mode": "token_tis", "cap": 2.0})
    assert plain["correction_mean"] == 1.0
    assert capped["correction_mean"] == 2.0
    assert capped["loss"] == pytest.approx(2 * plain["loss"], rel=1e-5)
    normalized = first_step(work, correction={"mode": "token_tis", "cap": 2.0, "normalize": True})
    assert normalized["loss"] == pytest.approx(plain["loss"], rel=1e-5)


def test_a_rejected_response_stays_in_the_denominator(work):
    rows = read_rollouts(work)
    odd = next(row for row in rows if row.sample_id == "g0s3")
    write_rollouts(
        work,
        [changed(row, rollout_logprobs=[-30.0] * len(row.response_ids)) if row is odd else row for row in rows],
    )
    fields = {"preset": "reinforce", "loss": {"aggregation": "seq-mean-token-sum"}}
    everything = first_step(work, correction={"mode": "none"}, **fields)
    rejected = first_step(work, correction={"mode": "none", "reject_k3": 1.0}, **fields)
    assert rejected["rejected_sequences"] == 1
    assert rejected["correction_mean"] < 1
    # Its share of the mean is gone; the sixteen that divide the others are still sixteen.
    logprobs = {row.sample_id: sum(row.old_logprobs) for row in read_logprobs(work)}
    assert everything["loss"] - rejected["loss"] == pytest.approx(-1.5 * logprobs["g0s3"] / 16, rel=1e-4)


def test_later_steps_of_a_round_are_clipped(work):
    config = config_of(preset="grpo", epochs=3, learning_rate=0.05)
    work.logprob(config)
    result = work.update(config)
    assert result.series[0]["clip_fraction"] == 0
    last = result.series[-1]
    assert last["clip_fraction"] > 0
    assert last["clip_fraction"] == pytest.approx(last["clip_fraction_low"] + last["clip_fraction_high"])
    assert last["ratio_max"] > 1.2
