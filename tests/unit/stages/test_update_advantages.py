import math

import pytest
import torch
from batch_inputs import records, rollout, update_config

from burnish.contracts.config import RewardConfig, ScorerConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.maths.returns import gae, token_rewards, whiten
from burnish.stages.update_round import build_batch


def batch_of(inputs, *, kl_coef=0.0, reward=None, **fields):
    return build_batch(*inputs, update_config(**{"preset": "dr_grpo", **fields}), kl_coef=kl_coef, reward=reward)[0]


def firsts(inputs, **fields):
    """The advantage of each sample's first token."""
    return batch_of(inputs, **fields).advantages[:, 0].tolist()


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ({"estimator": "group", "std": "group"}, [1.305580, -0.783348, -0.783348, 0.261116]),
        ({"estimator": "group", "std": "none"}, [0.625, -0.375, -0.375, 0.125]),
        ({"estimator": "rloo"}, [0.833333, -0.5, -0.5, 0.166667]),
        ({"estimator": "maxrl"}, [1.666667, -1.0, -1.0, 0.333333]),
        ({"estimator": "opo"}, [0.766667, -0.233333, -0.233333, 0.266667]),
    ],
)
def test_each_estimator_of_groups_is_the_one_its_name_says(advantage, expected):
    rows = [rollout(f"a{number}", length) for number, length in enumerate([2, 4, 6, 3])]
    assert firsts(records([[1, 0, 0, 0.5]], rollouts=rows), advantage=advantage) == pytest.approx(expected, abs=1e-5)


def test_group_centred_advantages_are_whitened_over_the_batch():
    found = torch.tensor(firsts(records([[1, 0, 0], [5, 1, 0]]), advantage={"estimator": "reinforce_pp_baseline"}))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1.0, abs=1e-6)
    assert found[0] / found[3] == pytest.approx((2 / 3) / 3, abs=1e-6)


def test_all_tokens_of_a_sample_get_its_advantage_and_no_others_do():
    rows = [rollout("a0", mask=[1, 0, 1]), rollout("a1", 2)]
    batch = batch_of(records([[0, 2]], rollouts=rows), advantage={"estimator": "group", "std": "none"})
    assert batch.advantages.tolist() == [[-1, 0, -1], [1, 1, 0]]


def test_kl_in_the_reward_is_summed_over_the_response_before_the_group_is_compared():
    rows = [rollout("a0", mask=[1, 0, 1]), rollout("a1", 2)]
    inputs = records([[0, 2]], rollouts=rows, old=-1.0, reference=-1.5)
    fields = {"advantage": {"estimator": "rloo"}, "kl": {"coef": 0.1, "place": "reward", "estimator": "k1"}}
    # Both lose 2 tokens x 0.5 nats x weight: the observation costs nothing.
    assert firsts(inputs, kl_coef=0.2, **fields) == pytest.approx([-2.0, 2.0])
    inputs = records([[0, 2]], rollouts=rows, old=-1.0, reference={"a0": [-1.5, 0, -2.0], "a1": [-1.0, -1.0]})
    assert firsts(inputs, kl_coef=0.2, **fields) == pytest.approx([-2.3, 2.3])
    assert firsts(inputs, kl_coef=0.0, **fields) == pytest.approx([-2.0, 2.0])


def test_with_kl_in_the_reward_a_sample_without_logprobs_has_no_say_in_its_group():
    rollouts, rewards, logprobs = records([[0, 1, 9]], reference=-1.0)
    fields = {"advantage": {"estimator": "group", "std": "none"}, "kl": {"coef": 0.1, "place": "reward"}}
    assert firsts((rollouts, rewards, logprobs[:2]), kl_coef=0.1, **fields) == pytest.approx([-0.5, 0.5])


def test_reinforce_pp_discounts_token_rewards_and_whitens_over_the_trained_tokens():
    rows = [rollout("a0", mask=[1, 1, 0, 0, 1, 1], length=6), rollout("b0", 2)]
    inputs = records([[1], [0]], rollouts=rows, old=-1.0, reference=-1.0)
    batch = batch_of(inputs, preset="reinforce_pp", advantage={"gamma": 0.9}, kl_coef=0.01)
    returns = torch.tensor([0.729, 0.81, 0.9, 1.0, 0.0, 0.0])
    expected = (returns - returns.mean()) / returns.std()
    assert batch.advantages[batch.mask].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert batch.returns is None


def test_reinforce_pp_takes_the_kl_off_every_token():
    inputs = records([[1], [1]], old=-1.0, reference={"a0": [-1.1, -0.95, -1.2], "b0": [-1.0] * 3})
    batch = batch_of(inputs, preset="reinforce_pp", kl_coef=0.05)
    returns = torch.tensor([0.9875, 0.9925, 0.99, 1.0, 1.0, 1.0])
    expected = (returns - returns.mean()) / returns.std()
    assert batch.advantages.flatten().tolist() == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("adaptive", [0.0, 0.5])
def test_gae_uses_the_critic_s_values_and_decoupled_lambdas(whitened, adaptive):
    values = {"a0": [0.1, 0.2, 9.0, 0.3], "a1": [0.5, 0.0]}
    rows = [rollout("a0", 4, mask=[1, 1, 0, 1]), rollout("a1", 2)]
    inputs = records([[1, -4]], rollouts=rows, values=values)
    batch = batch_of(
        inputs,
        preset="ppo",
        kl={"coef": 0.0},
        advantage={"gae_lambda": 0.9, "value_lambda": 0.5, "whiten": whitened, "length_adaptive": adaptive},
        critic={"score_clip": 2.0},
    )
    rewards = token_rewards(torch.tensor([1.0, -2.0]), None, 0.0, batch.mask)
    lam = torch.tensor([1 - 1 / 1.5, 0.0]) if adaptive else 0.9
    expected, _ = gae(rewards, batch.values, batch.mask, 1.0, lam)
    _, returns = gae(rewards, batch.values, batch.mask, 1.0, 0.5)
    torch.testing.assert_close(batch.advantages, whiten(expected, batch.mask) if whitened else expected)
    torch.testing.assert_close(batch.returns, returns)


def test_gae_without_values_names_what_is_missing():
    with pytest.raises(ContractError, match=r"values is missing but update\.advantage\.estimator is gae"):
        batch_of(records([[1, 0]]), preset="ppo", kl={"coef": 0.0})


def test_gdpo_weighs_components_and_leaves_out_what_weighs_nothing():
    components = {
        "a0": {"exact": 1.0, "length": 0.0, "shown": 5.0},
        "a1": {"exact": 0.0, "length": 1.0, "shown": 0.0},
        "a2": {"exact": 0.0, "length": None, "shown": 0.0},
    }
    inputs = records([[1, 1, 0]], components=components)
    scorers = [
        ScorerConfig(name="exact", weight=2.0),
        ScorerConfig(name="length", weight=1.0),
        ScorerConfig(name="shown", weight=0.0),
    ]
    found = firsts(inputs, preset="gdpo", kl={"coef": 0.0}, reward=RewardConfig(scorers=scorers))
    exact = torch.tensor([2.0, -1.0, -1.0]) / math.sqrt(3)
    length = torch.tensor([-1.0, 1.0, 0.0]) / math.sqrt(2)
    total = 2 * exact + length
    assert found == pytest.approx((total / total.std()).tolist(), abs=1e-4)


def test_in_gdpo_a_closed_gate_counts_as_nothing_achieved():
    components = {
        "a0": {"exact": 1.0, "format": 0.0},
        "a1": {"exact": 0.0, "format": 1.0},
        "a2": {"exact": 1.0, "format": 1.0},
    }
    scorers = [ScorerConfig(name="exact"), ScorerConfig(name="format", weight=0.0, gate=True)]
    inputs = records([[0, 0, 1]], components=components)
    gated = firsts(inputs, preset="gdpo", kl={"coef": 0.0}, reward=RewardConfig(scorers=scorers))
    assert gated[0] == gated[1] < 0 < gated[2]


def test_gdpo_with_kl_in_the_reward_is_refused():
    inputs = records([[1, 0]], reference=-1.0)
    with pytest.raises(ConfigError, match=r"update\.kl\.place=loss"):
        batch_of(inputs, preset="gdpo", kl={"place": "reward"})


def test_positive_advantages_are_amplified_after_they_are_estimated():
    assert firsts(
        records([[0, 0, 3]]), advantage={"estimator": "group", "std": "none"}, positive={"advantage_weight": 2.5}
    ) == pytest.approx([-1.0, -1.0, 5.0])


def test_with_bypass_the_sampler_s_logprobs_are_the_old_ones():
    rows = [rollout("a0", sampler=[-1.2, -0.9, -1.1], mask=[1, 1, 0]), rollout("a1", 2)]
    inputs = records([[0, 1]], rollouts=rows)
    plain = batch_of(inputs, preset="dapo")
    bypass = batch_of(inputs, preset="dapo", correction={"bypass": True})
    assert plain.old_logprobs[0].tolist() == pytest.approx([-1, -1, -1])
    # The observation has no logprob of the sampler's.
    assert bypass.old_logprobs[0].tolist() == pytest.approx([-1.2, -0.9, -1.0])
    assert torch.equal(bypass.trainer_logprobs, plain.trainer_logprobs)


def test_figures_describe_the_round_and_the_batch():
    rows = [rollout("a0", 2, finish="length"), rollout("a1", 4), rollout("b0", 3)]
    inputs = records([[0, 2], [None]], rollouts=rows, old=-1.0, reference=-1.0)
    _, figures = build_batch(*inputs, update_config(preset="dr_grpo"))
    expected = {
        "samples": 3, "samples_trained": 2, "groups": 2, "groups_incomplete": 1, "groups_dropped": 1,
        "reward_mean": 1, "reward_std": 1, "truncated_share": 1 / 3, "response_length": 3, "zero_variance_share": 0.5,
        "advantage_mean": 0, "advantage_std": 1, "advantage_max": 1, "negative_share": 0.5,
        "entropy": 0.5, "kl": 0, "mismatch": 0,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
