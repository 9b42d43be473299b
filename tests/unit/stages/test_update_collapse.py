import math

import pytest
import torch
from rl_inputs import config_of, make_workplace, manifest_of, write_rewards

from burnish.contracts.errors import StageError
from burnish.contracts.verdict import VERDICT_FILE, Good, Verdict
from burnish.maths.correction import Correction
from burnish.stages import update_step

# Clipping is there from the second step on, so that with this limit the second step is a collapse.
STRICT = {"patience": 1, "recent": 1, "clip_max": 1e-6}


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


@pytest.fixture
def not_finite(monkeypatch):
    monkeypatch.setattr(
        update_step,
        "correction_weights",
        lambda old, *_: Correction(torch.full_like(old, math.inf), torch.zeros(len(old), dtype=torch.bool)),
    )


def run(work, collapse=None, **fields):
    config = config_of(collapse=collapse, **{"preset": "dr_grpo", "learning_rate": 0.05, **fields})
    work.logprob(config)
    return work.update(config)


def verdict_of(work):
    return Verdict.from_json((work.path / "updated_verdict" / VERDICT_FILE).read_bytes(), "test")


def write_verdict(work, **fields):
    (work.folder("verdict") / VERDICT_FILE).write_text(Verdict(**fields).model_dump_json())


def inputs_of(work):
    kinds = {"policy": "policy", "trainer_state": "trainer_state", "critic": "critic"}
    return Good(**{name: manifest_of(kind, work.path / name, policy_version=0).digest for name, kind in kinds.items()})


def test_a_round_that_goes_well_says_so_and_leaves_its_figures_to_the_next(work):
    result = run(work, steps=2)
    verdict = verdict_of(work)
    assert (verdict.status, verdict.round, verdict.reasons) == ("ok", 1, [])
    assert verdict.last_good == inputs_of(work)
    assert len(verdict.history) == 2
    for row, figures in zip(verdict.history, result.series, strict=True):
        assert row == {name: figures.get(name) for name in row}
        assert {"reward", "entropy", "loss", "grad_norm", "response_length", "truncated_share"} <= set(row)
        assert None not in (row["reward"], row["clip_fraction"], row["ess"], row["mismatch"])
    assert result.metadata["updated_verdict"] == {"status": "ok", "round": 1, "reasons": []}


def test_figures_of_a_step_that_was_skipped_are_those_from_before_the_round(work):
    write_rewards(work, {f"g{group}s{sample}": 1.0 for group in range(4) for sample in range(4)})
    row = run(work).series[0]
    assert row["skipped"] == 1
    assert row["reward"] == 1.0
    assert row["entropy"] > 1
    assert row["truncated_share"] == 0
    assert row.get("loss") is None


@pytest.mark.parametrize(("action", "status"), [("stop", "stop"), ("rollback", "rolled_back")])
def test_a_collapse_makes_the_last_good_artifacts_the_outputs(work, action, status, capsys):
    result = run(work, {**STRICT, "action": action}, epochs=2)
    verdict = verdict_of(work)
    assert verdict.status == status
    good = inputs_of(work)
    assert result.reused == {
        "updated_policy": good.policy, "updated_trainer_state": good.trainer_state, "updated_critic": good.critic
    }  # fmt: skip
    assert set(result.metadata) == {"updated_verdict"}
    assert bool(result.metadata["updated_verdict"].get("stopped")) == (action == "stop")
    for name, value in work.weights("policy").items():
        assert torch.equal(work.weights("updated_policy")[name], value)
    assert f"{status}: clip_fraction" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["off", "warn"])
def test_without_leave_to_act_the_policy_goes_on(work, action):
    result = run(work, {**STRICT, "action": action}, epochs=2)
    assert verdict_of(work).status == {"off": "ok", "warn": "warn"}[action]
    assert result.metadata["updated_policy"]["policy_version"] == 1
    assert "updated_policy" not in result.reused


def test_after_a_rollback_learning_rate_and_clip_ranges_are_smaller(work):
    plain = run(work, epochs=2)
    write_verdict(work, status="rolled_back", round=1, rollbacks=1, lr_factor=0.5, clip_factor=0.25)
    gentle = run(work, epochs=2)
    assert [row["lr"] for row in plain.series] == [0.05, 0.05]
    assert [row["lr"] for row in gentle.series] == [0.025, 0.025]
    same = run(work, epochs=2, loss={"clip_low": 0.05, "clip_high": 0.05})
    assert gentle.series[1]["clip_fraction"] == same.series[1]["clip_fraction"]
    assert (verdict_of(work).lr_factor, verdict_of(work).clip_factor) == (0.5, 0.25)


@pytest.mark.parametrize(("action", "status"), [("stop", "stop"), ("rollback", "rolled_back")])
def test_a_loss_that_is_not_finite_is_a_collapse_at_once(work, action, status, not_finite):
    result = run(work, {"action": action}, steps=3)
    assert verdict_of(work).status == status
    assert verdict_of(work).reasons
    assert set(result.reused) == {"updated_policy", "updated_trainer_state", "updated_critic"}
    # It ends the round, and as a record it is a figure that could not be measured.
    assert len(result.series) == 1
    assert result.series[0]["loss"] is None


@pytest.mark.parametrize("action", ["off", "warn"])
def test_a_loss_that_is_not_finite_stops_a_stage_that_may_not_act_and_writes_nothing(work, action, not_finite):
    with pytest.raises(StageError, match="policy was not changed"):
        run(work, {"action": action})
    assert not (work.path / "updated_policy").exists()


def test_a_gradient_that_is_not_finite_stops_the_stage(work, monkeypatch):
    monkeypatch.setattr(
        update_step,
        "correction_weights",
        lambda old, *_: Correction(torch.full_like(old, 3e38), torch.zeros(len(old), dtype=torch.bool)),
    )
    with pytest.raises(StageError, match="policy was not changed"):
        run(work)


def test_mostly_negative_gradients_are_warned_about(work, capsys):
    result = run(work, epochs=2, positive={"warn_share": 0.1})
    share = result.series[0]["negative_gradient_share"]
    assert 0.1 < share < 0.9
    assert result.series[1]["negative_gradient_share"] is None
    assert result.metrics["negative_gradient_share"] == share
    assert f"make up {share:.0%} of the gradient" in capsys.readouterr().out
    run(work, positive={"warn_share": 1.0})
    assert "of the gradient" not in capsys.readouterr().out
