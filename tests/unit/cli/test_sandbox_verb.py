import json
import subprocess
import sys

import pytest

from burnish.cli.main import main
from sandbox.attacks import FAMILIES


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["sandbox", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


@pytest.fixture
def files(tmp_path):
    program, tests = tmp_path / "program.py", tmp_path / "tests.json"
    program.write_text("def add(a, b): return a + b if a < 5 else a / 0")
    calls = [{"args": [1, 2], "expected": 3}, {"args": [1, 2], "expected": 4}, {"args": [9, 1], "expected": 10}]
    tests.write_text(json.dumps({"entry_point": "add", "tests": calls}))
    return program, tests


def test_one_program_is_run_and_each_test_has_a_line(capsys, files):
    program, tests = files
    status, out, _ = run(capsys, "run", program, "--tests", tests)
    assert status == 1
    verdicts = [line.split()[2] for line in out.splitlines() if line.startswith("test ")]
    assert verdicts == ["passed", "wrong", "runtime_error"]
    assert "ZeroDivisionError: division by zero at line 1 in add" in out


def test_a_program_that_passes_ends_with_0_and_as_json_it_is_the_whole_result(capsys, files):
    program, tests = files
    tests.write_text(json.dumps({"entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}]}))
    status, out, _ = run(capsys, "run", program, "--tests", tests, "--json")
    assert status == 0
    assert json.loads(out)["verdicts"] == ["passed"]


def test_what_cannot_be_run_is_one_line_and_ends_with_2(capsys, files, tmp_path):
    program, tests = files
    status, _, err = run(capsys, "run", program, "--tests", tmp_path / "nowhere.json")
    assert (status, err.count("\n")) == (2, 1)
    tests.write_text('{"tests": [{"expected": 3}]}')
    status, _, err = run(capsys, "run", program, "--tests", tests)
    assert status == 2
    assert "entry_point is missing" in err
    status, _, err = run(capsys, "check", "--only", "nothing")
    assert status == 2
    assert FAMILIES[0].name in err


def test_the_check_prints_a_row_for_each_attack_and_ends_with_0(capsys):
    status, out, _ = run(capsys, "check", "--only", "sockets")
    (family,) = [family for family in FAMILIES if family.name == "sockets"]
    assert status == 0
    assert out.count("stopped\n") == len(family.attacks)
    assert f"{len(family.attacks)} attacks: {len(family.attacks)} stopped" in out


def test_the_check_works_without_burnish():
    script = "import sys; sys.modules['burnish'] = None; from sandbox.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "check", "--only", "disguise", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {finding["outcome"] for finding in json.loads(done.stdout)} == {"stopped"}
