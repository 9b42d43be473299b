import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest
from synthetic_run import HOSTILE, SyntheticRun, open_folder_store, synthetic_config

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import parse_config
from burnish.report.page import render_page
from burnish.report.run import RunView
from burnish.report.summary import markdown, summarise
from burnish.stages.report import collect_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = SyntheticRun(open_folder_store(folder), synthetic_config(rounds=3))
    run.write()
    return collect_run(run.store, run.run_id, run.config, folder / "files")


@pytest.fixture(scope="module")
def page(made):
    return render_page(made)


def rollout_data(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="rollout-data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_is_one_file_that_asks_no_other_host(page):
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b", page)
    assert not re.search(r"\bsrc=|@import|url\(", page.replace("img src=x", ""))
    assert len(page) < 3_000_000


def test_only_our_own_script_may_run(page):
    allowed = re.search(r"script-src '(sha256-[^']+)'", page)
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert allowed
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert allowed[1] == f"sha256-{digest}"


def test_text_of_a_model_stays_text(page):
    hostile = [item for item in rollout_data(page)["items"] if "owned" in "".join(item["tokens"])]
    assert hostile
    assert "".join(hostile[0]["tokens"]) == HOSTILE + "<|im_end|>"
    assert "<script>alert" not in page
    assert "<img" not in page


def test_text_of_the_run_is_escaped_everywhere():
    config = RunConfig(tasks=[{"source": "sums", "name": "<b>&{{settings}}"}])
    hostile = [
        StageRecord(
            run_id="r", stage="<i>", key="0", started_at=1.0, finished_at=2.0, error="</pre><script>alert(1)</script>"
        )
    ]
    text = render_page(RunView("<u>", config, hostile, notes=["<s>note</s>"]))
    for tag in ("<b>&{", "<i>", "<u>", "<s>", "<script>alert"):
        assert tag not in text
    assert "&lt;b&gt;&amp;{{settings}}" in text
    assert "<script>" not in markdown(RunView("r", config, hostile))


def test_a_finished_run_shows_its_parts(page):
    for part in ("Result", "Curves", "Rollouts", "Time", "Lineage", "Settings"):
        assert f"<h2>{part}</h2>" in page
    for title in ("Reward", "Reward by task", "KL to the reference", "Entropy", "Response length", "Clipped tokens",
                  "Effective sample size", "Loss", "Gradient norm", "Learning rate"):  # fmt: skip
        assert f"<b>{title}</b>" in page
    assert 'class="status finished"' in page
    assert "beyond noise" in page


def test_a_failed_run_says_what_failed_at_the_top(tmp_path):
    run = SyntheticRun(open_folder_store(tmp_path), synthetic_config(rounds=3), fail_at="round 2 - reward")
    run.write()
    view = collect_run(run.store, run.run_id, run.config, tmp_path / "files")
    text = render_page(view)
    assert 'class="status failed"' in text
    assert text.index("round 2 - reward failed") < text.index("<h2>Result</h2>")
    assert "no such scorer; did you mean &#x27;exact&#x27;?" in text
    assert "rounds 2 to 3, evaluate - after" in text
    assert summarise(view)["status"] == "failed"
    assert summarise(view)["rounds_done"] == 1
    # Round 2 has rollouts that nobody scored; they are shown all the same.
    assert {item["reward"] for item in rollout_data(text)["items"] if item["set"] == 1} == {None}


def test_a_run_that_its_budget_ended_says_so_and_what_it_cost():
    config = parse_config({"name": "demo", "rounds": 2, "cost": {"cpu_hour": 2.0, "budget": 9}})
    common = {"run_id": "r", "key": "0", "resources": {"cpu": 4.0}, "started_at": 1.0, "finished_at": 2.0}
    records = [
        StageRecord(stage="sft", timings={"total": 3600.0}, **common),
        *(StageRecord(stage="evaluate", label=label, **common) for label in ("before", "after")),
        *(
            StageRecord(stage=stage, round=round, skipped=True, stop_reason=why, **common)
            for round in (1, 2)
            for stage, why in (("rollout", "cost.budget is 9 <USD>"), ("update", ""))
        ),
    ]
    view = RunView("r", config, records)
    summary = summarise(view)
    assert (summary["status"], summary["rounds_done"]) == ("stopped", 0)
    assert (summary["cost"], summary["budget"]) == (pytest.approx(8.0 + 6 * 8 / 3600), 9.0)
    for text in (render_page(view), markdown(view)):
        assert "8.01 of 9.00 USD" in text
        assert "cost.budget is 9 &lt;USD" in text
    unknown = RunView("r", config, [record.model_copy(update={"resources": {}}) for record in records])
    assert summarise(unknown)["cost"] is None
    assert "cost: not known" in markdown(unknown)
    assert "cost" not in markdown(RunView("r", RunConfig(), records[:3]))


def test_a_run_without_any_record_still_has_a_page():
    view = RunView("r", RunConfig(), [])
    text = render_page(view)
    assert 'class="status unfinished"' in text
    assert "<h2>Settings</h2>" in text
    assert "<h2>Curves</h2>" not in text
    summary = summarise(view)
    assert summary["wall_s"] is None
    assert summary["reward_last"] is None
    assert "Not finished: rounds 1 to 4" in markdown(view)


def test_the_same_run_gives_the_same_page(made, page):
    assert render_page(made) == page


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_rollouts_and_runs_nothing_of_theirs(page, tmp_path):
    (tmp_path / "report.html").write_text(page, "utf-8")
    wanted = next(item["id"] for item in rollout_data(page)["items"] if "owned" in "".join(item["tokens"]))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
        f"{(tmp_path / 'report.html').as_uri()}#rollout={wanted}",
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    drawn = dom[dom.index('<div id="browser">') : dom.index("<footer")]
    assert f"sample {wanted}" in drawn
    assert 'class="tokens"' in drawn
    assert "not scored" in drawn
    assert "&lt;script" in re.sub(r"</?i[^>]*>", "", drawn)
    assert "<img" not in drawn
    assert "<script" not in drawn
