import json
import math

import pytest
import torch
from rl_inputs import (
    changed,
    config_of,
    make_rollouts,
    make_workplace,
    read_logprobs,
    read_rollouts,
    write_logprobs,
    write_rewards,
    write_rollouts,
)
from safetensors.torch import load_file

from burnish.contracts.errors import ContractError
from burnish.contracts.records import Logprob, Reward
from burnish.models.char import make_char_model
from burnish.models.load import load_policy
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.trainer_state import build_optimizer
from burnish.stages.update import mini_batches
from burnish.stages.update_round import build_batch
from burnish.stages.update_step import PolicyTrainer


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


def train(work, **fields):
    """logprob, then update, from the same inputs each time; returns the result and the new weights."""
    config = config_of(**fields)
    work.logprob(config)
    result = work.update(config)
    return result, work.weights("updated_policy")


def assert_same(found, expected):
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def assert_close(found, expected, atol=1e-5):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=atol, rtol=0, msg=name)


def rewards_of(work):
    return {rollout.sample_id: float(rollout.sample_id[-1]) for rollout in read_rollouts(work)}


def test_the_loss_of_the_first_step_is_minus_the_mean_advantage(work):
    result, _ = train(work, preset="grpo", kl={"coef": 0.0})
    # Means over each answer, then over answers: centred advantages of whole groups add up to 0.
    assert result.series[0]["loss"] == pytest.approx(0.0, abs=1e-6)
    result, _ = train(work, preset="dapo")
    lengths = {rollout.sample_id: len(rollout.response_ids) for rollout in read_rollouts(work)}
    deviation = math.sqrt(5 / 3)
    expected = sum(-(int(sample_id[-1]) - 1.5) / deviation * length for sample_id, length in lengths.items()) / sum(
        lengths.values()
    )
    assert result.series[0]["loss"] == pytest.approx(expected, abs=1e-4)


def test_two_rounds_through_artifacts_equal_two_rounds_in_memory_bit_by_bit(work):
    config = config_of(preset="dapo", steps=2, schedule="cosine", warmup_steps=2, weight_decay=0.01)
    work.logprob(config)
    # In memory: one model and one optimizer through both rounds.
    model = load_policy(work.path / "policy").model
    settings = config.update
    optimizer = build_optimizer(model, betas=settings.betas, weight_decay=settings.weight_decay)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    trainer = PolicyTrainer(policy, optimizer, settings, completion_limit=8)
    rewards = [Reward(sample_id, {}, value) for sample_id, value in rewards_of(work).items()]
    batch, _ = build_batch(read_rollouts(work), rewards, read_logprobs(work), settings)

    first = work.update(config, round=1)
    work.versions["updated_policy"] = first.metadata["updated_policy"]
    second = work.update(
        config, round=2, renamed={"policy": "updated_policy", "trainer_state": "updated_trainer_state"}
    )
    rates = [row["lr"] for row in first.series + second.series]
    assert [row["step"] for row in first.series + second.series] == [1, 2, 3, 4]
    assert len(set(rates)) >= 3

    steps = iter(rates)
    for round in (1, 2):
        seed = work.seeds[round]
        for rows in mini_batches(batch, steps=2, epochs=1, seed=seed):
            trainer.step(batch, rows, rate=next(steps))
    assert_same(work.weights("updated_policy"), dict(model.named_parameters()))
    moments = load_file(work.path / "updated_trainer_state" / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(moments[f"{name}.{key}"], value)
    assert second.metadata["updated_policy"] == {"policy_version": 2, "step": 4}
    assert json.loads((work.path / "updated_trainer_state" / "state.json").read_text()) == {
        "step": 4,
        "kl_coef": None,
        "lr_scale": 1.0,
    }


def test_a_truncated_sample_leaves_the_loss_and_its_denominators(work):
    rollouts = read_rollouts(work)
    cut = [rollout for rollout in rollouts if rollout.group_id == "g0"]
    kept = [rollout for rollout in rollouts if rollout.group_id != "g0"]
    write_rollouts(work, [changed(rollout, finish_reason="length") for rollout in cut] + kept)
    masked, masked_weights = train(work, preset="dapo")
    write_rollouts(work, kept)
    alone, alone_weights = train(work, preset="dapo")
    assert masked.series[0]["loss"] == pytest.approx(alone.series[0]["loss"], abs=1e-6)
    assert_close(masked_weights, alone_weights)
    assert masked.metrics["dropped/truncated"] == 4
    assert masked.metrics["truncated_share"] == 0.25


def test_a_group_without_differing_rewards_leaves_the_batch_and_its_denominators(work):
    rewards = rewards_of(work)
    write_rewards(work, {key: 1.0 if key.startswith("g1") else value for key, value in rewards.items()})
    dropped, dropped_weights = train(work, preset="dapo")
    write_rollouts(work, [rollout for rollout in read_rollouts(work) if rollout.group_id != "g1"])
    alone, alone_weights = train(work, preset="dapo")
    assert dropped.series[0]["loss"] == pytest.approx(alone.series[0]["loss"], abs=1e-6)
    assert_close(dropped_weights, alone_weights)
    assert dropped.metrics["dropped/zero_variance"] == 4
    assert dropped.metrics["groups_dropped"] == 1
    assert dropped.metrics["zero_variance_share"] == 0.25


def test_kept_groups_without_a_signal_stay_in_the_denominator_and_are_not_run(work):
    rewards = rewards_of(work)
    write_rewards(work, {key: 1.0 if key.startswith("g1") else value for key, value in rewards.items()})
    kept, _ = train(work, preset="dr_grpo")
    write_rollouts(work, [rollout for rollout in read_rollouts(work) if rollout.group_id != "g1"])
    alone, _ = train(work, preset="dr_grpo")
    assert kept.series[0]["tokens"] == alone.series[0]["tokens"]
    assert kept.series[0]["loss"] == pytest.approx(alone.series[0]["loss"] * 12 / 16, abs=1e-6)
    assert kept.series[0]["samples"] == 16


@pytest.mark.parametrize("preset", ["dapo", "dr_grpo"])
def test_equal_rewards_everywhere_skip_the_step_and_say_so(work, preset, capsys):
    write_rewards(work, dict.fromkeys(rewards_of(work), 1.0))
    result, weights = train(work, preset=preset, steps=2, weight_decay=0.1)
    assert_same(weights, work.weights("policy"))
    assert result.metrics["steps_skipped"] == 2
    assert result.metrics["zero_variance_share"] == 1.0
    assert result.metadata["updated_policy"] == {"policy_version": 1, "step": 2}
    assert "skipped: no group" in capsys.readouterr().out
    assert not (work.path / "updated_trainer_state" / "optimizer.safetensors").exists()


def test_with_a_kl_term_equal_rewards_still_pull_towards_the_reference(work):
    make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
    write_rewards(work, dict.fromkeys(rewards_of(work), 1.0))
    result, _ = train(work, preset="grpo", kl={"coef": 0.1})
    assert result.metrics["steps_skipped"] == 0
    assert result.series[0]["policy_loss"] == 0
    before = result.series[0]["kl"]
    after = work.logprob(config_of(kl={"coef": 0.1}), renamed={"policy": "updated_policy"}).metrics["kl_ref"]
    assert after < before


def test_a_missing_reward_is_as_if_the_sample_had_not_been_drawn(work):
    rewards = rewards_of(work)
    missing = dict(rewards)
    missing["g0s0"], missing["g1s1"] = None, math.nan
    del missing["g2s2"]
    write_rewards(work, missing)
    result, weights = train(work, preset="grpo")
    assert result.metrics["dropped/no_reward"] == 3
    gone = {"g0s0", "g1s1", "g2s2"}
    write_rollouts(work, [rollout for rollout in read_rollouts(work) if rollout.sample_id not in gone])
    alone, alone_weights = train(work, preset="grpo")
    assert alone.metrics["groups_incomplete"] == 3
    assert result.series[0]["loss"] == pytest.approx(alone.series[0]["loss"], abs=1e-6)
    assert_close(weights, alone_weights)


def test_a_sample_without_logprobs_counts_in_its_group_s_mean_but_is_not_trained(work):
    config = config_of(preset="dr_grpo")
    work.logprob(config)
    write_logprobs(work, [row for row in read_logprobs(work) if row.sample_id != "g0s3"])
    batch, metrics = build_batch(
        read_rollouts(work),
        [Reward(sample_id, {}, value) for sample_id, value in rewards_of(work).items()],
        read_logprobs(work),
        config.update,
    )
    assert metrics["dropped/no_logprobs"] == 1
    advantages = {row.sample_id: float(batch.advantages[at, 0]) for at, row in enumerate(batch.rollouts)}
    assert "g0s3" not in advantages
    assert advantages["g0s0"] == -1.5


def test_every_epoch_deals_whole_groups_once_in_a_seeded_order(tmp_path):
    work = make_workplace(tmp_path, groups=7, samples=2)
    config = config_of(preset="dr_grpo")
    work.logprob(config)
    rewards = [Reward(sample_id, {}, value) for sample_id, value in rewards_of(work).items()]
    batch, _ = build_batch(read_rollouts(work), rewards, read_logprobs(work), config.update)
    parts = list(mini_batches(batch, steps=3, epochs=2, seed=9))
    for epoch in (parts[:3], parts[3:]):
        assert sorted(row for part in epoch for row in part) == list(range(14))
        for part in epoch:
            groups = [batch.rollouts[row].group_id for row in part]
            assert all(groups.count(group) == 2 for group in groups)
    assert parts[:3] != parts[3:]
    assert parts == list(mini_batches(batch, steps=3, epochs=2, seed=9))


def test_more_steps_than_groups_skip_the_rest(tmp_path):
    work = make_workplace(tmp_path, groups=1)
    result, _ = train(work, steps=3)
    assert [row["skipped"] for row in result.series] == [0, 1, 1]


def _missing_reference(row):
    return Logprob(row.sample_id, row.old_logprobs, None, row.entropy)


def _too_short(row):
    return Logprob(row.sample_id, [*row.old_logprobs, 0.0], row.ref_logprobs, row.entropy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_missing_reference, "ref_logprobs is missing but update.kl.coef is 0.1"),
        (_too_short, "old_logprobs has"),
        (lambda row: Logprob("nobody", row.old_logprobs, row.ref_logprobs, row.entropy), "'nobody' is not in"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(work, change, message):
    config = config_of(kl={"coef": 0.1})
    work.logprob(config)
    first, *others = read_logprobs(work)
    write_logprobs(work, [change(first), *others])
    with pytest.raises(ContractError, match=message):
        work.update(config)


def test_a_sample_that_is_there_twice_is_refused(work):
    config = config_of()
    work.logprob(config)
    rows = read_logprobs(work)
    write_logprobs(work, [*rows, rows[0]])
    with pytest.raises(ContractError, match="is there twice"):
        work.update(config)


def test_the_trainer_state_of_another_model_is_refused(work):
    train(work)
    make_char_model(work.folder("policy"), layers=1, width=64, seed=3)
    rollouts = make_rollouts(work)
    write_rollouts(work, rollouts)
    config = config_of(kl={"coef": 0.0})
    work.logprob(config)
    with pytest.raises(ContractError, match="do not fit"):
        work.update(config, renamed={"trainer_state": "updated_trainer_state"})
