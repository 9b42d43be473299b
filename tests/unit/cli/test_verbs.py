import subprocess
import sys

import pytest

from burnish.cli.main import VERBS, main


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    shown = capsys.readouterr()
    return caught.value.code, shown.out, shown.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(capsys, verb):
    code, out, _ = call(capsys, verb, "--help")
    assert code == 0
    assert f"usage: burnish {verb}" in out


def test_the_help_of_run_lists_the_settings(capsys):
    _, out, _ = call(capsys, "run", "--help")
    assert "update.loss.clip_high (None)" in out
    assert "Upper clip range: the ratio is kept below" in out


def test_plan_shows_settings_dag_tasks_and_size(capsys):
    code, out, _ = call(capsys, "plan", "name=demo", "rounds=2", "update.preset=dapo")
    assert code == 0
    for line in (
        "clip_high: 0.28",
        "round 2",
        "policy 1",
        "tasks        15 of at most 40",
        "IR  ",
        "optimizer    2 steps",
    ):
        assert line in out


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("plan", "rollout.temprature=1"), "did you mean 'temperature'", 2),
        (("plan", "missing.yaml"), "'missing.yaml' does not exist", 2),
        (("plan", "rounds=9"), "use rounds <= 7", 2),
        (("compile", "rounds=9"), "use rounds <= 7", 2),
    ],
)
def test_a_mistake_is_one_line_and_a_non_zero_exit(capsys, arguments, words, code):
    status, _, error = call(capsys, *arguments)
    assert status == code
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1


def test_help_comes_without_importing_torch_or_kfp():
    code = (
        "import sys; from burnish.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'kfp', 'mlflow', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
