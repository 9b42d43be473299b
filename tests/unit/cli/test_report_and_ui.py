import os
import sys
from pathlib import Path

import pytest

from burnish.cli import ui
from burnish.cli.home import Home
from burnish.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from synthetic_run import SyntheticRun, open_folder_store, synthetic_config


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BURNISH_HOME", str(tmp_path / "home"))
    made = SyntheticRun(open_folder_store(tmp_path), synthetic_config(rounds=1))
    made.write()
    return made


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_report_writes_the_page_of_the_run_it_is_given(run, tmp_path, capsys):
    assert call("report", run.run_id) == 0
    page = tmp_path / "home" / "runs" / run.run_id / "report.html"
    assert capsys.readouterr().out == f"report  {page}\n"
    assert 'class="status finished"' in page.read_text()


def test_report_takes_the_latest_run_by_itself(run, tmp_path):
    runs = tmp_path / "home" / "runs"
    (runs / run.run_id).mkdir(parents=True)
    (runs / "latest").symlink_to(run.run_id)
    assert call("report", "--out", str(tmp_path / "elsewhere")) == 0
    assert (tmp_path / "elsewhere" / "report.html").exists()


def test_an_unknown_run_is_one_line_that_lists_the_known_ones(run, capsys):
    assert call("report", "nobody") == 1
    error = capsys.readouterr().err
    assert error == f"error: run 'nobody' left no records in this store; runs here: {run.run_id}\n"


def test_a_home_without_a_run_is_one_line(run, capsys):
    assert call("report") == 1
    assert "no run in" in capsys.readouterr().err


def test_ui_without_a_home_says_how_to_get_one(tmp_path, capsys):
    assert call("ui", "--home", str(tmp_path / "none")) == 1
    assert "`burnish run` makes it" in capsys.readouterr().err


def test_ui_lists_each_report_once_and_the_newest_first(tmp_path):
    home = Home(tmp_path)
    for age, name in enumerate(["old", "new"]):
        folder = home.run_dir(name)
        folder.mkdir(parents=True)
        (folder / "report.html").write_text("<p>")
        os.utime(folder / "report.html", (age, age))
    home.run_dir("latest").symlink_to("new")
    assert [page.parent.name for page in ui._reports(home)] == ["new", "old"]
