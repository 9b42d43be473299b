import math
import random

import pytest
import torch
from rl_inputs import config_of, make_workplace, read_logprobs, read_rollouts, write_logprobs, write_rollouts

from burnish.contracts.presets import PRESETS
from burnish.models.char import make_char_model

# Without a signal of its own, dropping the KL pull leaves the pure policy gradient.
NO_KL = {"kl": {"coef": 0.0}}


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


@pytest.fixture
def drifted(tmp_path):
    """The policy is no longer its reference, so that KL terms have something to say."""
    work = make_workplace(tmp_path)
    make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
    return work


def train(work, **fields):
    config = config_of(**fields)
    work.logprob(config)
    result = work.update(config)
    return result, work.weights("updated_policy")


@pytest.mark.parametrize("preset", PRESETS)
def test_without_learning_rate_and_staleness_every_ratio_is_one_and_nothing_is_clipped(work, preset):
    result, weights = train(work, preset=preset, learning_rate=0.0, steps=2, epochs=2, weight_decay=0.1)
    for name, value in work.weights("policy").items():
        assert torch.equal(weights[name], value), name
    assert len(result.series) == 4
    for row in result.series:
        assert row["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert row["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert row["clip_fraction"] == 0.0
        assert row["mismatch"] < 1e-5
        assert row["ess"] == pytest.approx(1.0, abs=1e-5)
        assert row["grad_norm"] > 0


@pytest.mark.parametrize("preset", PRESETS)
def test_an_update_makes_better_completions_likelier(work, preset):
    train(work, preset=preset, **NO_KL)
    before = {row.sample_id: sum(row.old_logprobs) for row in read_logprobs(work)}
    work.logprob(config_of(), renamed={"policy": "updated_policy"})
    gain = {row.sample_id: sum(row.old_logprobs) - before[row.sample_id] for row in read_logprobs(work)}
    best = sum(value for sample_id, value in gain.items() if sample_id.endswith("3"))
    worst = sum(value for sample_id, value in gain.items() if sample_id.endswith("0"))
    assert best > 0
    assert best > worst


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_takes_three_steps_and_the_order_of_rows_is_without_meaning(drifted, preset):
    config = config_of(preset=preset, steps=3)
    expected, expected_weights = train(drifted, preset=preset, steps=3)
    for row in expected.series:
        assert row["skipped"] == 0
        assert row["grad_norm"] > 0
        assert all(value is None or math.isfinite(value) for value in row.values())
    before = drifted.weights("policy")
    assert any(not torch.equal(expected_weights[name], before[name]) for name in before)

    rollouts, logprobs = read_rollouts(drifted), read_logprobs(drifted)
    rewards = [(rollout.sample_id, float(rollout.sample_id[-1])) for rollout in rollouts]
    for number, rows in enumerate((rollouts, logprobs, rewards)):
        random.Random(number).shuffle(rows)
    write_rollouts(drifted, rollouts, dict(rewards))
    write_logprobs(drifted, logprobs)
    result = drifted.update(config)
    weights = drifted.weights("updated_policy")
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name
    assert result.series == expected.series
