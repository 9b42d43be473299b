import json

import pytest
from batch_inputs import update_config
from rl_inputs import config_of, make_workplace

from burnish.contracts.errors import ContractError
from burnish.maths.kl import next_kl_coef
from burnish.models.char import make_char_model
from burnish.stages.trainer_state import TrainerState, read_trainer_state, write_trainer_state
from burnish.stages.update_plan import Plan

STATE = ("policy", "trainer_state")


@pytest.fixture
def drifted(tmp_path):
    """The policy is no longer its reference, so that there is a KL to measure."""
    work = make_workplace(tmp_path)
    make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
    return work


def next_round(work, config, round):
    """A round from the outputs of the one before, on the same rollouts."""
    renamed = {name: f"updated_{name}" for name in STATE} if round > 1 else {}
    work.logprob(config, renamed={name: target for name, target in renamed.items() if name == "policy"}, round=round)
    result = work.update(config, renamed=renamed, round=round)
    for name in STATE:
        work.versions[f"updated_{name}"] = result.metadata[f"updated_{name}"]
    return result


def state_of(work):
    return json.loads((work.path / "updated_trainer_state" / "state.json").read_text())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.4] * 5), ("linear", [0.4, 0.325, 0.25, 0.175, 0.1]), ("cosine", [0.4, None, 0.25, None, 0.1])],
)
def test_the_kl_weight_follows_its_schedule_over_the_whole_run(schedule, expected):
    settings = update_config(kl={"coef": 0.4, "schedule": schedule, "final_ratio": 0.25}, steps=1)
    plan = Plan(settings, rounds=5, round=1, state=TrainerState())
    for step, value in enumerate(expected):
        assert value is None or plan.kl_coef(step) == pytest.approx(value)


def test_what_rounds_and_rollbacks_have_found_scales_the_learning_rate():
    settings = update_config(learning_rate=0.1, schedule="linear", warmup_steps=2, final_lr_ratio=0.0)
    plan = Plan(settings, rounds=6, round=1, state=TrainerState(lr_scale=0.5), lr_factor=0.5)
    assert [plan.rate(step) for step in range(6)] == pytest.approx(
        [0.0125, 0.025, 0.025, 0.025 * 2 / 3, 0.025 / 3, 0.0]
    )


def test_the_policy_s_schedule_starts_after_the_critic_s_warm_up():
    settings = update_config(preset="ppo", learning_rate=0.1, warmup_steps=1, steps=2, critic={"warmup_rounds": 1})
    assert Plan(settings, 3, 1, TrainerState()).critic_only
    assert not Plan(settings, 3, 2, TrainerState()).critic_only
    assert not Plan(update_config(critic={"warmup_rounds": 1}), 3, 1, TrainerState()).critic_only
    linear = update_config(
        preset="ppo", learning_rate=0.1, schedule="linear", final_lr_ratio=0.0, steps=2, critic={"warmup_rounds": 1}
    )
    plan = Plan(linear, 3, 2, TrainerState(step=2))
    assert [plan.rate(step) for step in (2, 3, 4, 5)] == pytest.approx([0.1, 0.2 / 3, 0.1 / 3, 0.0])


def test_the_adaptive_controller_steers_by_the_measured_kl_and_its_weight_is_carried_on(drifted):
    config = config_of(
        preset="grpo", kl={"coef": 0.2, "schedule": "adaptive", "target": 0.05, "horizon": 100}, learning_rate=1e-3
    )
    first = next_round(drifted, config, 1)
    assert first.series[0]["kl_coef"] == 0.2
    measured = drifted.logprob(config).metrics["kl_ref"]
    assert measured > 0.1
    expected = next_kl_coef(0.2, measured, 0.05, 16, 100)
    assert expected == pytest.approx(0.2 * (1 + 0.2 * 16 / 100))
    assert state_of(drifted)["kl_coef"] == pytest.approx(expected)
    second = next_round(drifted, config, 2)
    assert second.series[0]["kl_coef"] == pytest.approx(expected)


def test_the_scheduled_weight_reaches_the_loss(drifted):
    losses = []
    for final_ratio in (1.0, 0.0):
        kl = {"coef": 0.5, "schedule": "linear", "final_ratio": final_ratio}
        config = config_of(preset="grpo", kl=kl, steps=3, learning_rate=0.0).model_copy(update={"rounds": 1})
        losses.append(next_round(drifted, config, 1).series)
    constant, linear = losses
    assert [row["kl_coef"] for row in linear] == pytest.approx([0.5, 0.25, 0.0])
    for row, other, share in zip(linear, constant, (1.0, 0.5, 0.0), strict=True):
        extra = other["loss"] - other["policy_loss"]
        assert extra > 0.1
        assert row["loss"] - row["policy_loss"] == pytest.approx(share * extra, abs=1e-6)


def test_the_scheduled_weight_reaches_the_reward(drifted):
    def advantages(final_ratio, step):
        kl = {"coef": 0.5, "place": "reward", "estimator": "k1", "schedule": "linear", "final_ratio": final_ratio}
        config = config_of(preset="rloo", kl=kl, learning_rate=0.0)
        write_trainer_state(drifted.folder("trainer_state"), TrainerState(step=step))
        return next_round(drifted, config, 1).metrics["advantage_max"]

    without = config_of(preset="rloo", kl={"coef": 0.0}, learning_rate=0.0)
    assert advantages(0.0, step=2) == pytest.approx(next_round(drifted, without, 1).metrics["advantage_max"], abs=1e-5)
    assert advantages(1.0, step=2) == advantages(0.0, step=0) != pytest.approx(advantages(0.0, step=2), abs=1e-3)


def test_the_learning_rate_is_halved_when_a_round_moves_the_policy_too_far_and_doubled_when_it_hardly_does(drifted):
    fields = {"preset": "dapo", "schedule": "kl_adaptive", "kl_adaptive_target": 0.01, "epochs": 2}
    far = next_round(drifted, config_of(learning_rate=0.05, **fields), 1)
    assert far.metrics["update_kl"] > 0.02
    assert state_of(drifted)["lr_scale"] == 0.5
    second = next_round(drifted, config_of(learning_rate=0.05, **fields), 2)
    assert [row["lr"] for row in second.series] == [0.025, 0.025]
    near = next_round(drifted, config_of(learning_rate=1e-4, **fields), 1)
    assert 0 < near.metrics["update_kl"] < 0.005
    assert state_of(drifted)["lr_scale"] == 2.0


def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(tmp_path):
    """Three rounds whose weights, moments, KL weight and learning rate all depend on the rounds before."""
    config = config_of(
        preset="grpo",
        kl={"coef": 0.2, "schedule": "adaptive", "target": 0.05, "horizon": 100},
        schedule="kl_adaptive",
        steps=2,
        positive={"negative_keep": 0.5},
    )

    def workplace(name):
        work = make_workplace(tmp_path / name)
        make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
        return work

    def result(work):
        return [path.read_bytes() for name in STATE for path in sorted((work.path / f"updated_{name}").iterdir())]

    whole = workplace("whole")
    series = [row for round in (1, 2, 3) for row in next_round(whole, config, round).series]
    assert [row["step"] for row in series] == [1, 2, 3, 4, 5, 6]
    assert len({row["kl_coef"] for row in series}) == 3
    assert len({row["lr"] for row in series}) > 1

    stopped = workplace("stopped")
    for round in (1, 2):
        next_round(stopped, config, round)
    resumed = workplace("resumed")
    for name in STATE:
        (stopped.path / f"updated_{name}").rename(resumed.path / f"updated_{name}")
        resumed.versions[f"updated_{name}"] = stopped.versions[f"updated_{name}"]
    assert next_round(resumed, config, 3).series == series[4:]
    assert result(resumed) == result(whole)


def test_a_state_without_a_controller_is_one_that_has_only_a_step(tmp_path):
    (tmp_path / "state.json").write_text('{"step": 7}')
    assert read_trainer_state(tmp_path) == TrainerState(step=7, kl_coef=None, lr_scale=1.0)
    state = TrainerState(3, 0.25, 0.5)
    write_trainer_state(tmp_path, state)
    assert read_trainer_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "x"}', '{"step": 1, "lr_scale": null}'])
def test_an_unreadable_state_is_refused(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ContractError, match=r"state\.json"):
        read_trainer_state(tmp_path)
