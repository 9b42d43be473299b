import dataclasses

import pytest
import torch
from rl_inputs import config_of, make_workplace, read_logprobs, read_rollouts
from safetensors.torch import load_file

from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.records import Reward
from burnish.maths.aggregation import token_weights
from burnish.models.backbone import completion_states
from burnish.models.critic import Critic, find_critic, load_critic
from burnish.models.load import load_policy
from burnish.models.logprobs import plan_batches
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.update_critic import CriticTrainer, SharedCriticTrainer
from burnish.stages.update_round import build_batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A workplace after logprob, and the batch of its samples with values of 0."""
    work = make_workplace(tmp_path_factory.mktemp("critic"))
    config = ppo()
    work.logprob(config)
    rewards = [Reward(rollout.sample_id, {}, float(rollout.sample_id[-1])) for rollout in read_rollouts(work)]
    batch, _ = build_batch(read_rollouts(work), rewards, read_logprobs(work), config.update)
    return work, batch


def ppo(**fields):
    return config_of(**{"preset": "ppo", "kl": {"coef": 0.0}} | fields)


def origin_of(work, config):
    return find_critic(work.folder("critic"), work.path / "policy", config.update.critic, config.model, work.path)


def trainer_of(work, *, head=None, **fields):
    """A trainer of a critic with the policy's layers, and a head that `head` fills."""
    config = ppo(**fields)
    critic = load_critic(origin_of(work, config), config.model, "cpu")
    if head:
        torch.manual_seed(2)
        head(critic.head.weight)
    return CriticTrainer(critic, config.update, Ranks(), device=CPU, dtype=torch.float32)


def rows_of(batch):
    return list(range(len(batch.rollouts)))


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one, two):
    return all(torch.equal(two[name], value) for name, value in one.items())


def test_the_first_loss_is_half_the_mean_square_of_the_returns(prepared):
    work, batch = prepared
    figures = trainer_of(work).train(batch, rows_of(batch), 1e-3)
    expected = 0.5 * batch.returns[batch.mask].square().mean()
    assert figures["value_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert figures["value_clip_fraction"] == 0.0
    assert figures["critic_grad_norm"] > 0


def test_a_critic_learns_what_the_returns_are(prepared):
    work, batch = prepared
    trainer = trainer_of(work, critic={"clip": 0.0})
    losses = [trainer.train(batch, rows_of(batch), 1e-2)["value_loss"] for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(("token_budget", "share_prompt"), [(4096, False), (40, True), (16, False)])
def test_micro_batches_and_sharing_change_neither_loss_nor_gradient(prepared, token_budget, share_prompt):
    work, batch = prepared
    whole, split = (
        trainer_of(work, head=torch.nn.init.normal_, **fields)
        for fields in ({}, {"token_budget": token_budget, "share_prompt": share_prompt})
    )
    one, two = (trainer.train(batch, rows_of(batch), 1e-3) for trainer in (whole, split))
    assert one == pytest.approx(two, rel=1e-4)
    for name, value in whole.module.state_dict().items():
        # Adam's first step is the sign of the gradient; weights that agree say that every sign does.
        assert torch.isclose(split.module.state_dict()[name], value, atol=1e-4).float().mean() > 0.98, name


def test_at_learning_rate_zero_no_bit_moves(prepared):
    work, batch = prepared
    trainer = trainer_of(work, head=torch.nn.init.normal_, weight_decay=0.1, critic={"epochs": 3})
    before = state_of(trainer.module)
    trainer.train(batch, rows_of(batch), 0.0)
    assert same(state_of(trainer.module), before)


def test_only_tokens_that_the_policy_generated_teach(prepared):
    work, batch = prepared
    mask = batch.mask.clone()
    mask[:, 0] &= mask.sum(1) == 1
    strange = torch.where(mask, batch.returns, 1e6)
    results = []
    for returns in (batch.returns, strange):
        trainer = trainer_of(work, head=torch.nn.init.normal_)
        changed = dataclasses.replace(batch, mask=mask, returns=returns)
        results.append((trainer.train(changed, rows_of(batch), 1e-3), state_of(trainer.module)))
    assert results[0][0] == results[1][0]
    assert same(results[0][1], results[1][1])


def test_values_that_moved_too_far_are_clipped_and_counted(prepared):
    work, batch = prepared
    # Values of 1 where the old ones are 0, returns far above: the clipped value 0.2 is further away and decides.
    trainer = trainer_of(work)
    torch.nn.init.ones_(trainer.critic.head.bias)
    far = dataclasses.replace(batch, returns=torch.full_like(batch.returns, 5.0))
    before = state_of(trainer.module)
    figures = trainer.train(far, rows_of(batch), 1e-2)
    assert figures["value_clip_fraction"] == 1.0
    assert figures["value_loss"] == pytest.approx(0.5 * 4.8**2, rel=1e-5)
    assert figures["critic_grad_norm"] == 0.0
    assert same(state_of(trainer.module), before)


def test_every_epoch_is_an_optimizer_step(prepared):
    work, batch = prepared
    once, twice = trainer_of(work), trainer_of(work, critic={"epochs": 2})
    once.train(batch, rows_of(batch), 1e-3)
    once.train(batch, rows_of(batch), 1e-3)
    twice.train(batch, rows_of(batch), 1e-3)
    assert same(state_of(once.module), state_of(twice.module))


def test_an_empty_mini_batch_is_no_step(prepared):
    work, batch = prepared
    assert trainer_of(work).train(batch, [], 1e-3) == {}


def test_a_loss_that_is_not_finite_leaves_the_critic_alone(prepared):
    work, batch = prepared
    trainer = trainer_of(work)
    before = state_of(trainer.module)
    broken = dataclasses.replace(batch, returns=torch.full_like(batch.returns, float("inf")))
    with pytest.raises(StageError, match="value loss is inf; the critic was not changed"):
        trainer.train(broken, rows_of(batch), 1e-3)
    assert same(state_of(trainer.module), before)


def test_without_values_there_is_one_clear_error(prepared):
    work, batch = prepared
    with pytest.raises(ContractError, match="no critic values"):
        trainer_of(work).train(dataclasses.replace(batch, values=None), rows_of(batch), 1e-3)


def test_a_critic_goes_on_from_what_it_saved_bit_by_bit(prepared, tmp_path):
    work, batch = prepared
    config = ppo()
    through = trainer_of(work)
    for step in range(4):
        if step == 2:
            for name in ("critic", "state"):
                (tmp_path / name).mkdir()
            through.save(tmp_path / "critic", tmp_path / "state")
            origin = find_critic(
                tmp_path / "critic", work.path / "policy", config.update.critic, config.model, tmp_path
            )
            critic = load_critic(origin, config.model, "cpu")
            again = CriticTrainer(critic, config.update, Ranks(), device=CPU, dtype=torch.float32)
            again.load_moments(tmp_path / "state")
        if step >= 2:
            again.train(batch, rows_of(batch), 1e-3)
        through.train(batch, rows_of(batch), 1e-3)
    assert same(state_of(through.module), state_of(again.module))
    assert "head.weight.exp_avg" in load_file(tmp_path / "state" / "critic_optimizer.safetensors")


def shared_trainer(work, policy, **fields):
    config = ppo(critic={"shared": True, **fields})
    head = origin_of(work, config).head
    torch.manual_seed(2)
    torch.nn.init.normal_(head.weight)
    return SharedCriticTrainer(head, ParallelPolicy(policy, Ranks(), device=CPU, dtype=torch.float32), config.update)


def test_a_shared_critic_that_learns_alone_leaves_the_policy_alone(prepared):
    work, batch = prepared
    policy = load_policy(work.path / "policy").model
    trainer = shared_trainer(work, policy)
    before, head = state_of(policy), state_of(trainer.module)
    trainer.train(batch, rows_of(batch), 1e-2)
    assert same(state_of(policy), before)
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert not same(state_of(trainer.module), head)


def test_a_shared_critic_s_loss_is_that_of_a_critic_with_the_same_layers_times_its_weight(prepared):
    work, batch = prepared
    policy = load_policy(work.path / "policy").model
    shared = shared_trainer(work, policy, coef=0.25)
    critic = Critic(load_policy(work.path / "policy").model.base_model, shared.head)
    apart = CriticTrainer(critic, ppo().update, Ranks(), device=CPU, dtype=torch.float32)
    weights = token_weights(batch.mask, "token-mean")
    gradients = []
    for layers, loss_of in (
        (policy.base_model, lambda micro, weights, pack: shared.extra_loss(micro, weights, states(policy, pack))),
        (apart.critic.layers, lambda micro, weights, pack: 0.25 * apart.loss(micro, weights, apart.values(pack))),
    ):
        for pack in plan_batches(shared.traits, batch.rollouts, token_budget=64, share_prompt=True):
            loss_of(batch.take(pack.order), weights[pack.order], pack).backward()
        gradients.append([parameter.grad.clone() for parameter in layers.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def states(policy, pack):
    return completion_states(policy, pack)
