import io
import os
import subprocess
import sys

import pytest

from burnish.cli.console import follow
from burnish.cli.home import Home, run_id_of
from burnish.cli.settings import settings_help
from burnish.contracts.errors import BurnishError
from burnish.contracts.loading import parse_config

KFP_OUTPUT = """\
15:00:00.000 - INFO - Executing task \x1b[96m'rollout'\x1b[0m
    ▸ round 1 - rollout: started
    something a library printed
    ▸ round 1 - rollout: 8/16 sequences, about 3 s left
    ▸ round 1 - rollout: done in 5.0 s
    ▸ round 1 - update: started
    error: update.learning_rate is -1
"""


def test_the_log_has_everything_and_the_terminal_what_people_follow(capsys):
    log = io.StringIO()
    ending = follow(KFP_OUTPUT.splitlines(keepends=True), log)
    assert log.getvalue() == KFP_OUTPUT
    shown = capsys.readouterr().out
    assert "round 1 - rollout: 8/16 sequences" in shown
    assert "done in 5.0 s" in shown
    assert "something a library printed" not in shown
    assert ending == ("round 1 - update", "update.learning_rate is -1")


def test_a_stage_killed_before_it_spoke_is_named_by_kfp():
    line = "15:00:00 - ERROR - Task \x1b[96m'sft'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m\n"
    assert follow([line], io.StringIO()) == ("sft", None)


def test_markup_in_model_text_is_not_interpreted(capsys):
    follow(["    ▸ round 1 - rollout: [bold]x[/] [/red]\n"], io.StringIO())
    assert "[bold]x[/] [/red]" in capsys.readouterr().out


def test_one_home_serves_one_run_at_a_time(tmp_path):
    home = Home(tmp_path / "home")
    with home.lock():
        code = (
            "import sys; from pathlib import Path; from burnish.cli.home import Home\n"
            "with Home(Path(sys.argv[1])).lock(): pass"
        )
        second = subprocess.run([sys.executable, "-c", code, str(home.root)], capture_output=True, text=True)
    assert second.returncode != 0
    assert f"in use by process {os.getpid()}" in second.stderr
    with home.lock():
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="needs the file system to refuse root")
def test_a_home_that_cannot_be_made_is_one_line():
    with pytest.raises(BurnishError, match="cannot be used"), Home.default("/proc/nowhere").lock():
        pass


def test_the_same_configuration_is_the_same_run_and_a_changed_one_is_not():
    one = parse_config({"name": "demo"})
    assert run_id_of(one) == run_id_of(parse_config({"name": "demo"}))
    assert run_id_of(one) != run_id_of(parse_config({"name": "demo", "seed": 1}))
    assert run_id_of(one).startswith("demo-")
    # Else a run that its budget ended could not go on with a larger one.
    assert run_id_of(one) == run_id_of(parse_config({"name": "demo", "cost": {"cpu_hour": 0.1, "budget": 5}}))


def test_the_settings_help_lists_every_setting_with_default_and_text():
    text = settings_help()
    for line in ("rollout.temperature (1.0)", "tasks.N.source (required)", "update.preset ('grpo')", "seed (0)"):
        assert line in text
