"""The campaign's page and its lines on the terminal."""

from fake_chunks import FakeLauncher, Runs, config

from burnish.campaign.controller import drive
from burnish.campaign.log import CampaignLog
from burnish.cli.campaign_view import print_campaign, standing, verdict_of
from burnish.report.campaign import campaign_charts, render_campaign


def campaign_of(store, tmp_path, settings=None, **faults):
    runs = Runs(store, tmp_path / "files", **faults)
    return drive(store, settings or config(), CampaignLog(store, "fake-1", "me"), FakeLauncher(runs))


def test_curves_go_on_over_chunks_whose_borders_are_drawn(store, tmp_path):
    charts = {chart.title: chart for chart in campaign_charts(campaign_of(store, tmp_path))}
    reward = charts["Reward"]
    assert reward.lines[0].points == [(float(round), round / 10) for round in range(1, 7)]
    assert list(reward.borders) == [2.5, 4.5]
    assert charts["Held-out"].lines[0].points == [(2.0, 0.02), (4.0, 0.04), (6.0, 0.06)]
    assert "Entropy" not in charts, "what was never measured has no chart"


def test_the_page_links_each_chunk_and_escapes_what_it_shows(store, tmp_path):
    campaign = campaign_of(store, tmp_path, config(campaign={"on_collapse": "stop"}), collapse_in={3})
    chunks = [campaign.chunks[0], campaign.chunks[1].model_copy(update={"run_id": "<script>"})]
    page = render_campaign(campaign.model_copy(update={"chunks": chunks}), "fake", 6, {1: "../runs/a/report.html"})
    assert '<a href="../runs/a/report.html">fake-1-0001</a>' in page
    assert "<script" not in page
    assert "collapse in round 3: kl of round 3" in page
    assert "3 of 6" in page
    assert '<span class="status stopped">' in page


def test_the_table_says_what_became_of_each_chunk(store, tmp_path, capsys):
    campaign = campaign_of(store, tmp_path, collapse_in={3})
    assert [verdict_of(chunk) for chunk in campaign.chunks] == [
        "ok", "collapsed in round 3", "rolled back, ok", "ok",
    ]  # fmt: skip
    print_campaign(campaign)
    shown = capsys.readouterr().out
    assert "collapsed in round 3" in shown
    assert shown.rstrip().endswith("finished, 6 rounds in 4 chunks")


def test_a_campaign_that_has_not_begun_stands_at_nothing(store):
    assert standing(CampaignLog(store, "fake-1", "").latest()) == "campaign fake-1: running, 0 rounds in 0 chunks"
