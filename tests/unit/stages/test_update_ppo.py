import dataclasses
import json

import pytest
import torch
from rl_inputs import (
    config_of,
    make_workplace,
    read_logprobs,
    read_rollouts,
    write_logprobs,
    write_rewards,
)
from safetensors.torch import load_file

from burnish.contracts.errors import ContractError
from burnish.contracts.records import Reward
from burnish.models.critic import find_critic, load_critic
from burnish.models.load import load_policy
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.trainer_state import TrainerState, build_optimizer
from burnish.stages.update import mini_batches
from burnish.stages.update_critic import CriticTrainer
from burnish.stages.update_plan import Plan
from burnish.stages.update_round import build_batch
from burnish.stages.update_step import PolicyTrainer

CPU = torch.device("cpu")
# What an update leaves, in place of what the first one finds.
NEXT = {name: f"updated_{name}" for name in ("policy", "trainer_state", "critic", "verdict")}


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


def ppo(**fields):
    return config_of(**{"preset": "ppo", "critic": {"learning_rate": 1e-2}} | fields)


def rounds(work, config, count):
    """`count` rounds on the same rollouts; returns the results of their updates."""
    results = []
    for number in range(1, count + 1):
        renamed = NEXT if number > 1 else {}
        work.logprob(config, renamed={key: value for key, value in renamed.items() if key in ("policy", "critic")})
        results.append(work.update(config, round=number, renamed=renamed))
    return results


def critic_of(work, config, name="updated_critic"):
    origin = find_critic(work.path / name, work.path / "policy", config.update.critic, config.model, work.path)
    return load_critic(origin, config.model, "cpu")


def head_of(work):
    return load_file(work.path / "updated_critic" / "value_head.safetensors")


def same(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(two[name], value) for name, value in one.items())


@pytest.mark.parametrize("preset", ["ppo", "vapo"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_critic_learns_beside_the_policy_from_round_to_round(work, preset, shared):
    critic = {"learning_rate": 1e-2, "shared": shared, "clip": 0.0, "coef": 1.0}
    config = ppo(preset=preset, learning_rate=1e-3, critic=critic, steps=2, epochs=4)
    before = work.weights("policy")
    first, *_, last = rounds(work, config, 4)
    assert first.metrics["value_mean"] == 0.0
    # Constant values explain nothing of the returns.
    assert first.metrics["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert last.metrics["explained_variance"] > 0.1
    assert last.metrics["value_loss"] < first.series[0]["value_loss"]
    assert last.metrics["value_mean"] == pytest.approx(last.metrics["return_mean"], abs=0.5)
    assert 0 <= last.metrics["value_clip_fraction"] <= 1
    assert last.metrics["critic_grad_norm"] > 0
    assert last.metrics["critic_lr_ratio"] == pytest.approx(10.0)
    assert len(last.series) == 8
    assert not same(work.weights("updated_policy"), before)
    files = {path.name for path in (work.path / "updated_critic").iterdir()}
    assert ("model.safetensors" in files) != shared
    assert json.loads((work.path / "updated_critic" / "critic.json").read_text()) == {"shared": shared}


def test_two_rounds_through_artifacts_equal_two_rounds_in_memory_bit_by_bit(work):
    config = ppo(steps=2, schedule="cosine", warmup_steps=2, weight_decay=0.01, epochs=2)
    settings = config.update
    model = load_policy(work.path / "policy").model
    policy = ParallelPolicy(model, Ranks(), device=CPU, dtype=torch.float32)
    optimizer = build_optimizer(model, betas=settings.betas, weight_decay=settings.weight_decay)
    trainer = PolicyTrainer(policy, optimizer, settings, completion_limit=8)
    empty = work.folder("critic")
    critic = load_critic(
        find_critic(empty, work.path / "policy", settings.critic, config.model, work.path), config.model, "cpu"
    )
    values = CriticTrainer(critic, settings, Ranks(), device=CPU, dtype=torch.float32)
    rewards = [Reward(rollout.sample_id, {}, float(rollout.sample_id[-1])) for rollout in read_rollouts(work)]

    for number in (1, 2):
        renamed = NEXT if number == 2 else {}
        work.logprob(config, renamed={key: value for key, value in renamed.items() if key in ("policy", "critic")})
        for row, old, value in zip(read_logprobs(work), *scores(policy, values, work, config), strict=True):
            assert row.old_logprobs == old.tolist()
            assert row.values == value.tolist()
        work.update(config, round=number, renamed=renamed)
        batch, _ = build_batch(read_rollouts(work), rewards, read_logprobs(work), settings, kl_coef=settings.kl.coef)
        state = TrainerState(step=4 * (number - 1))
        plan = Plan(settings, config.rounds, number, state)
        parts = list(mini_batches(batch, steps=2, epochs=2, seed=work.seeds[number]))
        for step, rows in enumerate(parts, state.step):
            values.train(batch, rows, plan.critic_rate(step))
        for step, rows in enumerate(parts, state.step):
            trainer.step(batch, rows, rate=plan.rate(step))
    assert same(work.weights("updated_policy"), dict(model.named_parameters()))
    assert same(critic_of(work, config).state_dict(), critic.state_dict())


def scores(policy, values, work, config):
    """Old logprobs and values of each rollout under models in memory, as the logprob stage packs them."""
    rollouts = read_rollouts(work)
    old, value = [None] * len(rollouts), [None] * len(rollouts)
    for found, traits, score in (
        (old, policy.traits, lambda pack: token_logprobs(policy.model, pack)[0]),
        (value, values.traits, values.values),
    ):
        budget = config.logprob.token_budget
        with torch.no_grad():
            for pack in plan_batches(traits, rollouts, token_budget=budget, share_prompt=True):
                for index, part in zip(pack.order, score(pack).split(pack.lengths), strict=True):
                    found[index] = part
    return old, value


@pytest.mark.parametrize("shared", [False, True])
def test_at_learning_rate_zero_neither_policy_nor_critic_moves(work, shared):
    config = ppo(learning_rate=0.0, weight_decay=0.1, steps=2, critic={"learning_rate": 0.0, "shared": shared})
    results = rounds(work, config, 2)
    assert same(work.weights("updated_policy"), work.weights("policy"))
    assert not any(value.any() for value in head_of(work).values())
    if not shared:
        layers = load_policy(work.path / "policy").model.base_model.state_dict()
        assert same(critic_of(work, config).layers.state_dict(), layers)
    for result in results:
        for row in result.series:
            assert row["ratio_max"] == pytest.approx(1.0, abs=1e-5)
            assert row["clip_fraction"] == 0.0
            assert row["value_clip_fraction"] == 0.0
        assert result.metrics["critic_lr_ratio"] is None


@pytest.mark.parametrize("shared", [False, True])
def test_in_warmup_rounds_only_the_critic_learns(work, shared):
    config = ppo(critic={"learning_rate": 1e-2, "shared": shared, "warmup_rounds": 1})
    (first,) = rounds(work, config, 1)
    assert same(work.weights("updated_policy"), work.weights("policy"))
    assert head_of(work)["weight"].any()
    assert first.metrics["value_loss"] > 0
    assert not (work.path / "updated_trainer_state" / "optimizer.safetensors").exists()
    _, second = rounds(work, config, 2)
    assert not same(work.weights("updated_policy"), work.weights("policy"))
    assert second.metrics["grad_norm"] > 0


@pytest.mark.parametrize("shared", [False, True])
def test_only_a_shared_critic_moves_the_policy_where_nothing_is_better_than_expected(work, shared):
    # Equal rewards and values of 0: advantages are 0, returns are not. A head of zeros has no gradient for the layers
    # under it, so they move from the second step on.
    write_rewards(work, {rollout.sample_id: 1.0 for rollout in read_rollouts(work)})
    critic = {"learning_rate": 1e-2, "shared": shared}
    rounds(work, ppo(kl={"coef": 0.0}, advantage={"gae_lambda": 1.0}, critic=critic, steps=2), 1)
    assert head_of(work)["weight"].any()
    moved = not same(work.weights("updated_policy"), work.weights("policy"))
    assert moved == shared


def test_without_values_the_update_says_what_to_run(work):
    work.logprob(ppo())
    write_logprobs(work, [dataclasses.replace(row, values=None) for row in read_logprobs(work)])
    with pytest.raises(ContractError, match=r"values is missing but update\.advantage\.estimator is gae") as caught:
        work.update(ppo())
    assert "\n" not in str(caught.value)


def test_without_a_critic_in_the_recipe_the_artifact_passes_through(work):
    config = config_of(preset="grpo")
    work.logprob(config)
    result = work.update(config)
    assert "updated_critic" in result.reused
    assert "value_loss" not in result.metrics
    assert not list((work.path / "updated_critic").iterdir())


def test_a_score_that_is_far_out_can_be_clipped(work):
    config = ppo(kl={"coef": 0.0}, critic={"learning_rate": 1e-2, "score_clip": 0.5})
    work.logprob(config)
    result = work.update(config)
    # Rewards are 0, 1, 2 and 3 in each group; lambda 1 makes the return of every token the score.
    assert 0 < result.metrics["return_mean"] <= 0.5


@pytest.mark.slow
def test_a_critic_trained_by_two_processes_is_that_of_one(work):
    states = []
    for processes in (1, 2):
        config = ppo(steps=2)
        config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"processes": processes})})
        result = rounds(work, config, 2)[-1]
        states.append((result.metrics, critic_of(work, config).state_dict()))
    (one, alone), (two, spread) = states
    for name in ("value_loss", "critic_grad_norm", "explained_variance", "value_mean"):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name
    for name, value in alone.items():
        assert torch.isclose(spread[name], value, atol=2e-3).float().mean() > 0.98, name
