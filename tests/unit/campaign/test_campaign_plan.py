import pytest
from fake_chunks import FakeLauncher, Runs, config

from burnish.campaign.controller import drive
from burnish.campaign.log import CampaignLog
from burnish.campaign.plan import campaign_id_of, check_campaign, chunk_overrides, next_step
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import parse_config, with_overrides


def run(store, tmp_path, settings, **faults):
    runs = Runs(store, tmp_path / "files", **faults)
    return drive(store, settings, CampaignLog(store, "fake-1", "me"), FakeLauncher(runs))


def test_chunks_cover_the_rounds_and_the_last_may_be_shorter(store, tmp_path):
    campaign = run(store, tmp_path, config(campaign={"rounds": 7, "rounds_per_chunk": 3}))
    assert [(chunk.start.round, chunk.rounds) for chunk in campaign.chunks] == [(0, 3), (3, 3), (6, 1)]
    assert {chunk.start.total_rounds for chunk in campaign.chunks} == {7}


def test_evaluation_comes_every_so_many_chunks_and_at_the_end(store, tmp_path):
    settings = config(campaign={"rounds": 10, "evaluate_every": 2})
    campaign = run(store, tmp_path, settings)
    assert [chunk.evaluated for chunk in campaign.chunks] == [False, True, False, True, True]
    skipped = [with_overrides(settings, chunk_overrides(chunk, settings)).evaluate.skip for chunk in campaign.chunks]
    assert skipped == [["after"], ["before"], ["after"], ["before"], []]
    assert campaign.chunks[2].start.evaluation == campaign.chunks[1].outcome.evaluation


def test_overrides_make_the_chunk_and_hold_no_space(store, tmp_path):
    settings = config()
    second = run(store, tmp_path, settings).chunks[1]
    overrides = chunk_overrides(second, settings)
    assert not any(" " in override for override in overrides)
    chunk = with_overrides(settings, overrides)
    assert chunk.start == second.start
    assert (chunk.rounds, chunk.last_round, chunk.collapse.action) == (2, 4, "stop")


@pytest.mark.parametrize(
    ("asked", "on_collapse", "action"),
    [("warn", "continue", "warn"), ("rollback", "stop", "rollback"), ("off", "rollback", "off")],
)
def test_the_detectors_action_is_only_raised_from_warn(store, tmp_path, asked, on_collapse, action):
    settings = config(collapse={"action": asked}, campaign={"on_collapse": on_collapse})
    (first, *_) = run(store, tmp_path, settings).chunks
    assert with_overrides(settings, chunk_overrides(first, settings)).collapse.action == action


@pytest.mark.parametrize(("refresh", "moved"), [(0, [False, False]), (2, [True, True]), (4, [False, True])])
def test_the_reference_stays_or_is_refreshed_as_in_one_run(store, tmp_path, refresh, moved):
    campaign = run(store, tmp_path, config(update={"kl": {"refresh_interval": refresh}}))
    first, second, third = campaign.chunks
    cold_start = first.outcome.reference
    references = [chunk.start.reference or chunk.start.policy for chunk in (second, third)]
    kept = [cold_start, cold_start]
    refreshed = [first.outcome.policy, second.outcome.policy]
    assert references == [refreshed[i] if moved[i] else kept[i] for i in range(2)]


def test_hours_end_a_campaign_between_chunks(store, tmp_path):
    campaign = run(store, tmp_path, config(campaign={"max_hours": 0.005}))
    assert campaign.status == "stopped"
    assert campaign.reason.startswith("campaign.max_hours is 0.005")
    assert len(campaign.chunks) == 1


def test_a_chunk_that_its_budget_ended_ends_the_campaign_until_there_is_more(store, tmp_path):
    campaign = run(store, tmp_path, config(cost={"budget": 5.0}), unbudgeted={4})
    assert (campaign.status, campaign.rounds_done) == ("stopped", 3)
    assert (
        campaign.reason == "cost.budget is 0.00 of 5.00 USD, which bears no other round; a larger one goes on from here"
    )
    assert campaign.chunks[1].short_of_budget
    assert run(store, tmp_path, config(cost={"budget": 5.0})).rounds_done == 3, "no more than before"
    campaign = run(store, tmp_path, config(cost={"budget": 6.0}))
    assert (campaign.status, campaign.rounds_done) == ("finished", 6)
    assert campaign.chunks[2].start.policy == campaign.chunks[1].outcome.policy


def test_what_a_chunk_may_cost_is_what_the_others_left(store, tmp_path):
    first = run(store, tmp_path, config(campaign={"rounds": 2}))
    spent = first.chunks[0].model_copy(update={"outcome": first.last.model_copy(update={"cost": 3.0})})
    campaign = first.model_copy(update={"chunks": [spent]})
    settings = config(cost={"budget": 4.0})
    chunk = next_step(campaign, settings, str)
    assert chunk.budget == 1.0
    assert with_overrides(settings, chunk_overrides(chunk, settings)).cost.budget == 1.0
    assert next_step(campaign, config(cost={"budget": 3.0}), str).reason.startswith("cost.budget is 3.00 of 3.00 USD")


def test_how_long_it_goes_on_does_not_make_it_another_campaign():
    base = parse_config({})
    assert campaign_id_of(parse_config({"campaign": {"rounds": 99}, "rounds": 5})) == campaign_id_of(base)
    assert campaign_id_of(parse_config({"seed": 1})) != campaign_id_of(base)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"campaign": {"rounds": 50, "rounds_per_chunk": 20}}, "at most 40"),
        ({"rounds": 4, "update": {"kl": {"refresh_interval": 6}}}, "refresh_interval is 6 and a chunk has 4 rounds"),
    ],
)
def test_what_cannot_be_cut_into_chunks_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_campaign(parse_config(settings))
