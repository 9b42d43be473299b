"""The controller is killed at every step it takes, and the campaign loses and repeats nothing."""

import pytest
from fake_chunks import FakeLauncher, Runs, config

from burnish.campaign.controller import drive
from burnish.campaign.log import CampaignLog, TakenOver
from burnish.campaign.outcome import read_outcome
from burnish.contracts.errors import StageError
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.store.artifacts import ArtifactStore
from burnish.store.folder import FolderBackend


class Killed(BaseException):
    """Not an error that anything may catch."""


class Killer:
    """Kills at the `fatal`-th of the moments that it is asked about, and counts them."""

    def __init__(self, fatal=None):
        self.fatal, self.moments = fatal, []

    def __call__(self, moment):
        self.moments.append(moment)
        if len(self.moments) == self.fatal:
            raise Killed(moment)


class WatchedLog(CampaignLog):
    """A log whose writes are moments, too."""

    def __init__(self, store, controller, killer):
        super().__init__(store, "fake-1", controller)
        self.killer = killer

    def write(self, campaign, **changes):
        self.killer("before writing")
        written = super().write(campaign, **changes)
        self.killer("after writing")
        return written


def go_on(store, runs, settings, killer, controller="me"):
    return drive(store, settings, WatchedLog(store, controller, killer), FakeLauncher(runs, killer))


def moments_of(store, runs, settings):
    killer = Killer()
    go_on(store, runs, settings, killer)
    return len(killer.moments)


def test_killed_at_every_step_a_campaign_runs_every_chunk_exactly_once_in_order(tmp_path, store):
    settings = config()
    total = moments_of(store, Runs(store, tmp_path / "dry"), settings)
    assert total > 20, "state, submission and end of three chunks"
    for fatal in range(1, total + 1):
        own = ArtifactStore(FolderBackend(tmp_path / f"bucket-{fatal}"), store.cache)
        runs = Runs(own, tmp_path / "files")
        with pytest.raises(Killed):
            go_on(own, runs, settings, Killer(fatal))
        campaign = go_on(own, runs, settings, Killer(), controller="another")
        assert runs.submitted == [f"fake-1-000{number}/1" for number in (1, 2, 3)], f"killed at {fatal}"
        assert campaign.status == "finished"
        assert [found.round for chunk in campaign.chunks for found in chunk.outcome.rounds] == [1, 2, 3, 4, 5, 6]
        ends = [chunk.outcome.policy for chunk in campaign.chunks]
        assert [chunk.start.policy for chunk in campaign.chunks] == ["", *ends[:-1]]


def test_killed_again_and_again_it_gets_there(tmp_path, store):
    runs, settings = Runs(store, tmp_path / "files"), config()
    for attempt in range(100):
        try:
            # Each attempt gets a little further than taking over and looking around.
            campaign = go_on(store, runs, settings, Killer(4 + attempt % 3), controller=f"attempt {attempt}")
            break
        except Killed:
            continue
    assert campaign.status == "finished"
    assert len(runs.submitted) == len(set(runs.submitted)) == 3


def test_a_finished_run_that_kfp_forgot_is_not_submitted_again(tmp_path, store):
    runs, settings = Runs(store, tmp_path / "files"), config()
    with pytest.raises(Killed):
        go_on(store, runs, settings, lambda moment: killed_after(moment, "after the run ended"))
    runs.submitted.clear()
    go_on(store, runs, settings, Killer())
    assert runs.submitted == ["fake-1-0002/1", "fake-1-0003/1"]


def killed_after(moment, fatal):
    if moment == fatal:
        raise Killed


def test_a_failed_chunk_ends_the_command_and_the_next_one_tries_it_again(tmp_path, store):
    runs, settings = Runs(store, tmp_path / "files", fail={"fake-1-0002/1"}), config()
    with pytest.raises(StageError, match=r"chunk 2 \(fake-1-0002\) failed: out of memory"):
        go_on(store, runs, settings, Killer())
    failed = CampaignLog(store, "fake-1", "").latest()
    assert failed.chunks[-1].error == "out of memory"
    assert failed.status == "running"
    campaign = go_on(store, runs, settings, Killer())
    assert campaign.status == "finished"
    assert runs.submitted == ["fake-1-0001/1", "fake-1-0002/1", "fake-1-0002/2", "fake-1-0003/1"]
    assert campaign.chunks[1].error is None


def test_after_a_collapse_it_goes_on_from_the_last_good_policy_gentler_and_with_other_rounds(tmp_path, store):
    runs = Runs(store, tmp_path / "files", collapse_in={3})
    campaign = go_on(store, runs, config(), Killer())
    assert campaign.status == "finished"
    first, collapsed, repaired, last = campaign.chunks
    assert collapsed.outcome.collapsed
    assert collapsed.outcome.last_round == 3, "round 4 was left out"
    assert repaired.rolled_back
    assert repaired.start.policy == first.outcome.policy
    assert (repaired.start.round, repaired.rounds) == (3, 1), "no number twice: other prompts and seeds; borders stay"
    assert (last.start.round, last.rounds, last.rolled_back) == (4, 2, False)
    manifest = store.get_manifest(repaired.start.verdict)
    assert "stopped" not in manifest.metadata
    store.fetch(manifest, tmp_path / "verdict")
    verdict = Verdict.from_json((tmp_path / "verdict" / VERDICT_FILE).read_bytes(), "it")
    assert (verdict.status, verdict.lr_factor, verdict.clip_factor, verdict.history) == ("rolled_back", 0.5, 0.5, [])


def test_a_collapse_ends_the_campaign_where_that_is_asked_for(tmp_path, store):
    runs = Runs(store, tmp_path / "files", collapse_in={3})
    campaign = go_on(store, runs, config(campaign={"on_collapse": "stop"}), Killer())
    assert (campaign.status, campaign.reason) == ("stopped", "collapse in round 3: kl of round 3")
    assert len(runs.submitted) == 2
    assert campaign.last.policy == campaign.chunks[0].outcome.policy


def test_rollbacks_come_to_an_end(tmp_path, store):
    runs = Runs(store, tmp_path / "files", collapse_in={1, 2, 3})
    campaign = go_on(store, runs, config(), Killer())
    assert campaign.status == "stopped"
    assert campaign.reason.startswith("collapse in round 3 after 2 rollbacks")


def test_a_finished_campaign_goes_on_with_more_rounds(tmp_path, store):
    runs = Runs(store, tmp_path / "files")
    assert go_on(store, runs, config(campaign={"rounds": 3}), Killer()).status == "finished"
    assert go_on(store, runs, config(campaign={"rounds": 3}), Killer()).status == "finished"
    assert len(runs.submitted) == 2, "nothing is left to do"
    campaign = go_on(store, runs, config(campaign={"rounds": 6}), Killer())
    assert [(chunk.start.round, chunk.rounds) for chunk in campaign.chunks] == [(0, 2), (2, 1), (3, 1), (4, 2)]


def test_a_controller_that_fell_behind_neither_writes_nor_launches(tmp_path, store):
    runs, settings = Runs(store, tmp_path / "files"), config()

    class Overtaken(FakeLauncher):
        def wait(self, chunk):
            go_on(store, runs, settings, Killer(), controller="the other")
            return super().wait(chunk)

    with pytest.raises(TakenOver):
        drive(store, settings, CampaignLog(store, "fake-1", "me"), Overtaken(runs))
    assert len(runs.submitted) == 3
    assert CampaignLog(store, "fake-1", "").latest().controller == "the other"


def test_a_run_that_is_not_done_has_no_outcome(tmp_path, store):
    runs, settings = Runs(store, tmp_path / "files"), config()
    chunk = go_on(store, runs, settings, Killer()).chunks[0]
    assert read_outcome(store, chunk, settings.cost)
    for title in ("round-2-update", "evaluate-after", "sft"):
        key = f"runs/{chunk.run_id}/{title}.json"
        text = store.backend.get_bytes(key)
        store.backend.delete([key])
        assert read_outcome(store, chunk, settings.cost) is None
        store.backend.put_bytes(key, text)
