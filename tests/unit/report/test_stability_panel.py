import math
import re

import pytest
from synthetic_run import SyntheticRun, open_folder_store, synthetic_config

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.report.page import render_page
from burnish.report.run import RunView, SampleSet, SampleStats, TokenDispute
from burnish.report.stability import stability_section
from burnish.report.summary import markdown, summarise
from burnish.report.timing import run_time
from burnish.report.verdicts import RoundVerdict, read_verdicts, rounds_text
from burnish.stages.report import collect_run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    run = SyntheticRun(open_folder_store(folder), synthetic_config(rounds=4), stop_at=2)
    run.write()
    return collect_run(run.store, run.run_id, run.config, folder / "files")


def update(round, metadata=None, **fields):
    """A record of an update and the manifest of its verdict."""
    manifest = Manifest(kind="verdict", blobs=[], lineage=Lineage(stage="update"), metadata=metadata or {})
    outputs = {"updated_verdict": manifest.digest}
    return StageRecord(run_id="r", stage="update", round=round, key="0", outputs=outputs, **fields), manifest


def view_of(*updates):
    return RunView("r", RunConfig(), [record for record, _ in updates], {each.digest: each for _, each in updates})


def test_a_stopped_run_says_so_at_the_top_with_its_reasons(stopped):
    page = render_page(stopped)
    assert 'class="status stopped"' in page
    banner = page.index("This run was stopped after round 2, rounds 3 to 4 left out")
    assert banner < page.index("<h2>Result</h2>")
    assert "kl 1.74 is above 0.5 (10 x its baseline)" in page[banner : page.index("<h2>Result</h2>")]
    assert "Not finished" not in page
    assert "<dd>2 of 4</dd>" in page


def test_the_summary_of_a_stopped_run_has_verdicts_and_what_was_left_out(stopped):
    found = summarise(stopped)
    assert (found["status"], found["rounds_done"], found["rounds_skipped"]) == ("stopped", 2, [3, 4])
    assert [verdict["status"] for verdict in found["verdicts"]] == ["ok", "stop"]
    assert {"rule", "cause", "evidence", "change"} == found["diagnosis"][0].keys()
    text = markdown(stopped)
    assert text.startswith("# arithmetic: stopped")
    assert "**This run was stopped after round 2" in text
    assert "## Likely causes" in text


def test_rounds_that_were_left_out_take_no_time_and_no_place_in_the_lineage(stopped):
    time = run_time(stopped.records)
    assert not any(stage.record.skipped for stage in time.stages)
    lineage = re.search(r'<section id="lineage">.*?</section>', render_page(stopped), re.DOTALL)[0]
    assert "round 3" not in lineage


def test_the_critic_of_a_run_without_one_is_no_row_of_the_lineage(stopped):
    lineage = re.search(r'<section id="lineage">.*?</section>', render_page(stopped), re.DOTALL)[0]
    assert "<td>updated_policy</td>" in lineage
    assert "critic" not in lineage


def test_rounds_without_a_finding_are_one_sentence():
    section = stability_section(view_of(*(update(round, {"status": "ok", "reasons": []}) for round in (1, 2, 3))))
    assert "The collapse detector found nothing in rounds 1 to 3." in section
    assert "<table" not in section


def test_warnings_and_rollbacks_are_rows_with_escaped_reasons():
    section = stability_section(
        view_of(
            update(1, {"status": "ok", "reasons": []}),
            update(2, {"status": "warn", "reasons": ["ess <b>0.1</b> is below 0.5"]}),
            update(3, {"status": "rolled_back", "reasons": ["kl 9 is above 0.5", "loss is nan"]}),
        )
    )
    assert "Nothing found in round 1." in section
    assert "<td>round 2</td><td>warning</td><td>ess &lt;b&gt;0.1&lt;/b&gt; is below 0.5</td>" in section
    assert "<td>rolled back</td><td>kl 9 is above 0.5<br>loss is nan</td>" in section
    assert "Round 3 undone; each time the learning rate was multiplied by 0.5" in section


def test_a_verdict_that_nobody_writes_is_not_shown():
    view = view_of(update(1, {"status": "<script>", "reasons": []}), update(2))
    assert read_verdicts(view.records, view.manifests).rounds == []
    assert stability_section(view) == ""


def test_verdicts_come_in_the_order_of_the_rounds():
    updates = [update(round, {"status": "ok", "reasons": []}) for round in (10, 2, 1)]
    found = view_of(*updates, update(11, skipped=True)).verdicts
    assert found.rounds == [RoundVerdict(round, "ok", []) for round in (1, 2, 10)]
    assert found.skipped == [11]
    assert found.stop is None


def test_the_worst_tokens_of_each_round_are_shown_in_their_text(stopped):
    section = stability_section(stopped)
    for round in (1, 2):
        part = section.partition(f"<h3>round {round}</h3>")[2].partition("<h3>")[0]
        assert part.count("<mark>") == 10
        assert f"r{round}-g" in part
    worst = stopped.sample_sets[0].disputes
    gaps = [abs(each.trainer - each.sampler) for each in worst]
    assert gaps == sorted(gaps, reverse=True)


def test_a_disputed_token_shows_both_probabilities_and_hides_no_markup(stopped):
    rollout = stopped.sample_sets[0].shown[0].rollout
    dispute = TokenDispute(rollout, 1, sampler=math.log(0.5), trainer=math.log(2e-5))
    texts = dict.fromkeys(rollout.response_ids, b"x") | {rollout.response_ids[1]: b"<i>\n"}
    stats = SampleStats(1, None, {}, None, None)
    view = RunView("r", RunConfig(), [], sample_sets=[SampleSet("round 1", 1, stats, [], [dispute])], token_texts=texts)
    section = stability_section(view)
    assert "<mark>&lt;i&gt;⏎</mark>" in section
    assert "<td>50.0%</td><td>2.0e-5</td><td>-10.13</td>" in section


@pytest.mark.parametrize(("rounds", "text"), [([3], "round 3"), ([3, 4, 5], "rounds 3 to 5"), ([1, 4], "rounds 1, 4")])
def test_rounds_read_like_words(rounds, text):
    assert rounds_text(rounds) == text
