import pytest
import torch
from rl_inputs import changed, config_of, make_workplace, read_logprobs, read_rollouts, write_rollouts

from burnish.contracts.errors import ConfigError, ContractError, StageError
from burnish.models.char import make_char_model
from burnish.models.critic import find_critic, load_critic, save_critic
from burnish.stages import logprob
from burnish.stages.logprob_figures import bypass_clip_share

PPO = {"preset": "ppo", "kl": {"coef": 0.0}}


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


def put_critic(work, *, shared=False, seed=1):
    """A critic with the policy's layers and a head that says something, as the artifact `critic`."""
    config = config_of(**PPO, critic={"shared": shared})
    folder = work.folder("critic")
    origin = find_critic(folder, work.path / "policy", config.update.critic, config.model, work.path)
    torch.manual_seed(seed)
    torch.nn.init.normal_(origin.head.weight)
    critic = load_critic(origin, config.model, "cpu") if not shared else None
    save_critic(folder, origin.head, critic.layers if critic else None)


def values_of(work):
    return {row.sample_id: row.values for row in read_logprobs(work)}


def watch_loads(monkeypatch):
    loaded = []
    for name in ("load_policy", "load_critic"):
        load = getattr(logprob, name)
        monkeypatch.setattr(
            logprob, name, lambda *given, load=load, name=name, **rest: loaded.append(name) or load(*given, **rest)
        )
    return loaded


def test_without_a_critic_in_the_recipe_there_are_no_values(work):
    put_critic(work)
    work.logprob(config_of(preset="grpo"))
    assert set(map(type, values_of(work).values())) == {type(None)}


@pytest.mark.parametrize("shared", [False, True])
def test_before_the_first_update_every_value_is_zero_and_no_critic_is_run(work, monkeypatch, shared):
    loaded = watch_loads(monkeypatch)
    result = work.logprob(config_of(**PPO, critic={"shared": shared}))
    assert loaded == ["load_policy"]
    for rollout in read_rollouts(work):
        assert values_of(work)[rollout.sample_id] == [0.0] * len(rollout.response_ids)
    assert result.metrics["value_mean"] == 0.0


def test_values_are_aligned_with_the_response_and_independent_of_sharing_and_budget(work):
    put_critic(work)
    work.logprob(config_of(**PPO))
    shared = values_of(work)
    config = config_of(**PPO, share_prompt=False)
    work.logprob(config.model_copy(update={"logprob": config.logprob.model_copy(update={"token_budget": 16})}))
    for rollout in read_rollouts(work):
        assert len(shared[rollout.sample_id]) == len(rollout.response_ids)
        assert values_of(work)[rollout.sample_id] == pytest.approx(shared[rollout.sample_id], abs=1e-5)
    assert len({value for values in shared.values() for value in values}) > 20


def test_a_head_on_the_policy_s_layers_gives_the_values_of_the_same_layers_apart(work, monkeypatch):
    put_critic(work)
    work.logprob(config_of(**PPO))
    apart = read_logprobs(work)
    for path in work.folder("critic").iterdir():
        path.unlink()
    put_critic(work, shared=True)
    loaded = watch_loads(monkeypatch)
    work.logprob(config_of(**PPO, critic={"shared": True}))
    assert loaded == ["load_policy"]
    for one, two in zip(apart, read_logprobs(work), strict=True):
        assert two.old_logprobs == one.old_logprobs
        assert two.values == pytest.approx(one.values, abs=1e-5)


def test_a_critic_of_the_other_kind_is_refused(work):
    put_critic(work)
    with pytest.raises(ContractError, match="critic"):
        work.logprob(config_of(**PPO, critic={"shared": True}))


def test_values_that_are_not_finite_name_the_sample(work):
    put_critic(work)
    config = config_of(**PPO)
    origin = find_critic(work.path / "critic", work.path / "policy", config.update.critic, config.model, work.path)
    critic = load_critic(origin, config.model, "cpu")
    torch.nn.init.constant_(critic.head.bias, float("nan"))
    save_critic(work.folder("critic"), critic.head, critic.layers)
    with pytest.raises(StageError, match="values under the critic are not finite"):
        work.logprob(config)


def test_a_start_that_cannot_be_found_is_a_mistake_of_the_configuration(work):
    with pytest.raises(ConfigError, match=r"update\.critic\.init is './gone'"):
        work.logprob(config_of(**PPO, critic={"init": "./gone"}))


def test_another_model_as_a_start_gives_zeros_until_it_has_learned(work, tmp_path):
    other = make_char_model(tmp_path / "other", layers=1, width=64, seed=8)
    work.logprob(config_of(**PPO, critic={"init": str(other)}))
    assert not any(any(values) for values in values_of(work).values())


def test_kl_in_the_reward_needs_the_reference_too(work):
    make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
    result = work.logprob(config_of(preset="ppo"))
    assert all(row.ref_logprobs is not None for row in read_logprobs(work))
    assert result.metrics["kl_ref"] > 0


def off_by(work, amount):
    """One token whose sampler was less sure than the trainer is, by `amount` nats."""
    rollouts = read_rollouts(work)
    off = list(rollouts[5].rollout_logprobs)
    off[0] -= amount
    rollouts[5] = changed(rollouts[5], rollout_logprobs=off)
    write_rollouts(work, rollouts)
    return sum(len(rollout.response_ids) for rollout in rollouts), rollouts[5]


def test_what_would_be_clipped_without_recomputing_is_reported(work):
    tokens, _ = off_by(work, 1.5)
    assert work.logprob(config_of(preset="dapo")).metrics["bypass_clip_share"] == pytest.approx(1 / tokens)
    # exp(1.5) = 4.5 lies inside cispo's [0, 5].
    assert work.logprob(config_of(preset="cispo")).metrics["bypass_clip_share"] == 0.0
    assert work.logprob(config_of(preset="reinforce")).metrics["bypass_clip_share"] is None


def test_without_a_mismatch_nothing_would_be_clipped(work):
    for preset in ("grpo", "gspo", "gmpo", "dppo_tv"):
        assert work.logprob(config_of(preset=preset)).metrics["bypass_clip_share"] == 0.0


def test_the_clip_share_of_each_kind_of_range():
    old = torch.log(torch.tensor([[0.5, 0.3], [0.2, 0.2]]))
    sampler = torch.log(torch.tensor([[0.5, 0.2], [0.2, 0.9]]))
    mask = torch.tensor([[True, True], [True, False]])
    loss = config_of(preset="dapo").update.loss
    assert bypass_clip_share(old, sampler, mask, loss) == pytest.approx(1 / 3)
    # The geometric mean of row 1 is sqrt(1.5) = 1.22, inside 1.28.
    assert bypass_clip_share(old, sampler, mask, loss.model_copy(update={"ratio": "sequence"})) == 0.0
    narrow = loss.model_copy(update={"ratio": "sequence", "clip_high": 0.2})
    assert bypass_clip_share(old, sampler, mask, narrow) == pytest.approx(2 / 3)
    # log 1.5 = 0.41 and a probability that grew by 0.1.
    logs = loss.model_copy(update={"surrogate": "gmpo", "clip_high": 0.4})
    assert bypass_clip_share(old, sampler, mask, logs) == pytest.approx(1 / 3)
    gain = loss.model_copy(update={"surrogate": "dppo_tv", "clip_high": 0.2})
    assert bypass_clip_share(old, sampler, mask, gain) == 0.0


def test_effective_samples_are_those_of_the_correction_that_applies(work):
    tokens, rollout = off_by(work, 1.5)
    found = {}
    for mode in ("none", "token_tis", "token_mask", "sequence_mask"):
        found[mode] = work.logprob(config_of(correction={"mode": mode, "high": 4.0})).metrics
    assert found["none"]["ess"] == pytest.approx(1.0)
    capped = torch.ones(tokens)
    capped[0] = 2.0
    expected = float(capped.sum() ** 2 / (tokens * capped.square().sum()))
    assert found["token_tis"]["ess"] == pytest.approx(expected, rel=1e-4)
    assert found["token_mask"]["ess"] == pytest.approx((tokens - 1) / tokens, rel=1e-4)
    assert found["sequence_mask"]["ess"] == pytest.approx((tokens - len(rollout.response_ids)) / tokens, rel=1e-4)
    assert found["token_mask"]["correction_rejected_share"] == 0.0
    assert found["sequence_mask"]["correction_rejected_share"] == pytest.approx(1 / 16)
    bypass = work.logprob(config_of(correction={"mode": "token_tis", "bypass": True})).metrics
    assert bypass["ess"] == pytest.approx(1.0)


def test_chi_square_of_sequences_grows_with_their_product(work):
    tokens, _ = off_by(work, 1.5)
    metrics = work.logprob(config_of()).metrics
    assert metrics["mismatch_chi2"] == pytest.approx((torch.tensor(3.0).exp().item() - 1) / tokens, rel=1e-3)
    assert metrics["mismatch_chi2_sequence"] == pytest.approx((torch.tensor(3.0).exp().item() - 1) / 16, rel=1e-3)
