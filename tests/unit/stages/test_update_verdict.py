import math

import pytest

from burnish.contracts.algorithm import CollapseConfig
from burnish.contracts.verdict import Good, Verdict
from burnish.stages.update_verdict import judge

WELL = {"reward": 0.5, "entropy": 1.0, "loss": 0.0, "grad_norm": 0.5, "ess": 0.99}
BAD = WELL | {"ess": 0.1}
STOP, ROLLBACK = CollapseConfig(action="stop"), CollapseConfig(action="rollback")


def inputs(round):
    """What the update of `round` started from."""
    return Good(policy=f"policy{round - 1}", trainer_state=f"state{round - 1}", critic=f"critic{round - 1}")


def run(settings, *rounds, verdict=None):
    """The verdicts of rounds whose steps are given."""
    verdict, found = verdict or Verdict(), []
    for round, rows in enumerate(rounds, start=1):
        verdict = judge(verdict, rows, round, inputs(round), settings)
        # What the next round reads went through a file.
        assert Verdict.from_json(verdict.model_dump_json(), "verdict.json").status == verdict.status
        found.append(verdict)
        if verdict.status == "stop":
            break
    return found


def test_a_round_that_went_well_makes_its_inputs_the_last_good_ones():
    first, second = run(STOP, [WELL] * 4, [WELL] * 4)
    assert (first.status, first.reasons, first.round) == ("ok", [], 1)
    assert first.last_good == inputs(1)
    assert second.last_good == inputs(2)
    assert len(second.history) == 8
    assert "stopped" not in second.metadata


@pytest.mark.parametrize("action", ["warn", "stop", "rollback"])
def test_too_few_bad_steps_are_a_warning_that_nothing_follows_from(action):
    verdict = run(CollapseConfig(action=action), [WELL] * 4, [WELL, BAD, BAD, WELL])[-1]
    assert verdict.status == "warn"
    assert verdict.reasons[0].startswith("ess 0.1 is below 0.5")
    assert (verdict.rollbacks, verdict.lr_factor, verdict.clip_factor) == (0, 1.0, 1.0)


def test_the_policy_of_a_round_with_a_warning_is_not_called_good():
    found = run(STOP, [WELL] * 3, [WELL] * 3, [WELL, WELL, BAD], [BAD, WELL, WELL], [WELL] * 5, [WELL] * 3)
    assert [verdict.status for verdict in found] == ["ok", "ok", "warn", "warn", "ok", "ok"]
    # Round 3 started from the policy of round 2, which went well; rounds 4 and 5 started from what is in doubt.
    assert [verdict.last_good for verdict in found] == [inputs(round) for round in (1, 2, 3, 3, 3, 6)]


def test_stop_names_the_last_good_policy_and_tells_all_stages_after_it():
    found = run(STOP, [WELL] * 3, [WELL, WELL, BAD], [BAD, BAD, WELL], [WELL] * 3)
    assert [verdict.status for verdict in found] == ["ok", "warn", "stop"]
    assert found[-1].last_good == inputs(2)
    assert found[-1].metadata["stopped"] is True
    assert "in 3 of" in found[-1].reasons[0]


def test_warn_says_collapse_but_goes_on_with_all_its_history():
    found = run(CollapseConfig(action="warn"), [WELL] * 4, [BAD] * 4, [BAD] * 4)
    assert [verdict.status for verdict in found] == ["ok", "warn", "warn"]
    assert len(found[-1].history) == 12
    assert found[-1].last_good == inputs(2)


def test_off_never_says_anything():
    (verdict,) = run(CollapseConfig(action="off"), [WELL | {"loss": math.nan}] * 4)
    assert (verdict.status, verdict.reasons, verdict.history) == ("ok", [], [])
    assert verdict.last_good == inputs(1)


def test_rollback_goes_back_forgets_and_gets_gentler():
    found = run(ROLLBACK, [WELL] * 4, [BAD] * 4, [WELL] * 4)
    back, after = found[1:]
    assert (back.status, back.rollbacks, back.lr_factor, back.clip_factor) == ("rolled_back", 1, 0.5, 0.5)
    assert back.last_good == inputs(2)
    assert back.history == []
    assert "stopped" not in back.metadata
    assert (after.status, after.lr_factor, len(after.history)) == ("ok", 0.5, 4)
    # What the round after a roll-back started from is what was rolled back to.
    assert after.last_good == inputs(3)


def test_after_its_last_rollback_a_run_stops():
    found = run(CollapseConfig(action="rollback", max_rollbacks=2, lr_factor=0.1), *[[BAD] * 4] * 4)
    assert [verdict.status for verdict in found] == ["rolled_back", "rolled_back", "stop"]
    assert found[-1].lr_factor == pytest.approx(0.01)
    assert found[-1].rollbacks == 2
    assert run(CollapseConfig(action="rollback", max_rollbacks=0), [BAD] * 4)[0].status == "stop"


def test_a_collapse_in_the_first_round_goes_back_to_what_went_in():
    (verdict,) = run(STOP, [BAD] * 4)
    assert (verdict.status, verdict.last_good) == ("stop", inputs(1))
    unknown = Verdict(status="warn", last_good=None)
    assert judge(unknown, [BAD] * 4, 2, inputs(2), STOP).last_good == inputs(2)


def test_a_loss_that_is_not_finite_needs_no_second_step():
    (verdict,) = run(STOP, [WELL, WELL | {"loss": math.nan}])
    assert verdict.status == "stop"
    assert verdict.reasons == ["loss is nan in 1 of 2 steps: lower update.learning_rate"]


def test_how_many_steps_a_round_has_does_not_matter():
    steps = [WELL] * 9 + [BAD] * 3 + [WELL] * 12
    for size in (1, 2, 3, 4, 6, 12, 24):
        rounds = [steps[at : at + size] for at in range(0, len(steps), size)]
        found = run(STOP, *rounds)
        assert found[-1].status == "stop", size
        assert found[-1].round == math.ceil(12 / size), size


def test_a_long_run_keeps_a_short_history():
    verdict = run(STOP, *[[WELL] * 8] * 30)[-1]
    assert verdict.status == "ok"
    assert len(verdict.history) == 35
    assert len(verdict.model_dump_json()) < 20_000
