"""Work directories: what a program may do in one, how much, and that none is left whatever it did."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sandbox import removal, workdir
from sandbox.limits import Limits
from sandbox.spec import SpecError, parse_spec
from sandbox.verdicts import Sandbox
from sandbox.workdir import WorkDirectory

ROOT = str(Path(__file__).resolve().parents[2])
LIMITS = Limits(wall_s=10, memory_mb=256, disk_mb=8, files=100)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def run(sandbox, code, files=None, stdout="done\n"):
    spec = {"tests": [{"stdin": "", "stdout": stdout}], "files": {} if files is None else files}
    return sandbox.run_tests(code, parse_spec(spec))


def test_a_program_finds_its_files_and_may_work_with_them(sandbox, place):
    code = """
import os, shutil, tempfile
from pathlib import Path
assert Path("given.txt").read_text() == "ä"
Path("a/b").mkdir(parents=True)
shutil.copy("given.txt", "a/b/copy")
os.rename("a/b/copy", "moved")
os.symlink("moved", "link")
assert open("link").read() == "ä"
os.truncate(os.open("moved", os.O_RDWR), 0)
with tempfile.TemporaryDirectory(dir=".") as folder, open(f"{folder}/x", "w") as file:
    file.write("x" * 1_000_000)
shutil.rmtree("a")
print("done")
"""
    result = run(sandbox, code, {"given.txt": "ä"})
    assert result.verdicts == ("passed",), result
    assert list(place.iterdir()) == []


def test_functions_may_have_files_too(sandbox, place):
    spec = {"entry_point": "f", "tests": [{"args": [3], "expected": "3"}], "files": {}}
    code = "def f(x):\n    open('x', 'w').write(str(x))\n    return open('x').read()"
    assert sandbox.run_tests(code, parse_spec(spec)).verdicts == ("passed",)
    del spec["files"]
    result = sandbox.run_tests(code, parse_spec(spec))
    assert result.verdicts == ("runtime_error",)
    assert result.details[0].startswith("PermissionError")


def test_without_files_no_directory_is_made(sandbox, place, monkeypatch):
    def refuse(*_):
        raise AssertionError("a directory was made")

    monkeypatch.setattr(WorkDirectory, "__init__", refuse)
    spec = parse_spec({"tests": [{"stdin": "", "stdout": "3"}]})
    assert sandbox.run_tests("print(3)", spec).verdicts == ("passed",)


TOO_MUCH = {
    "one large file": ("f = open('x', 'wb')\nfor _ in range(200): f.write(b'x' * 100_000); f.flush()", "8 MiB"),
    "a few large files": ("for i in range(9):\n    open(f'x{i}', 'wb').write(b'x' * 2_000_000)", "8 MiB"),
    "files that have no name": (
        "import os, time\nkept = []\nfor i in range(9):\n    kept.append(open('x', 'wb'))\n    os.unlink('x')\n"
        "    kept[-1].write(b'x' * 2_000_000)\n    kept[-1].flush()\ntime.sleep(5)",
        "8 MiB",
    ),
    "small files": ("for i in range(101):\n    open(f'{i}', 'w').close()", "100 files"),
    "small files and no end": ("for i in range(10**9):\n    open(f'{i}', 'w').close()", "100 files"),
    "links": ("import os\nfor i in range(200): os.symlink('/', f'{i}')", "100 files"),
    "folders in folders": ("import os\nfor _ in range(50):\n    os.mkdir('d')\n    os.chdir('d')", "32 deep"),
}


@pytest.mark.parametrize("how", TOO_MUCH)
def test_too_much_on_disk_is_an_output_limit(sandbox, place, how):
    code, detail = TOO_MUCH[how]
    result = run(sandbox, code + "\nprint('done')")
    assert result.verdicts == ("output_limit",), result
    assert detail in result.details[0]
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')",
        "import os\nos.umask(0)\nos.mkdir('closed', 0)\nos.mkdir('blind', 0o300)\nos.mkdir('blind/inner', 0)",
        f"import os\nos.symlink({ROOT!r}, 'tree')\nos.symlink('tree', 'chain')\nos.symlink('loop', 'loop')",
        "import os\nfor name in ('\\udcff', ' ', '*', '-rf', 'a' * 255): os.mkdir(name); open(name + '/x', 'w')",
        "import os\nos.link('given', 'other')\nos.chmod('given', 0)\nos.utime('given', (0, 0))",
        "import os\nos.rmdir(os.getcwd()) if not os.listdir() else os.rename('given', '../given')",
        "import os\nfor _ in range(99):\n    try: os.mkdir('..//' + 'x' * 9)\n    except OSError: pass\n1 / 0",
    ],
)
def test_nothing_is_left_whatever_was_made(sandbox, place, code):
    (place / "neighbour").write_text("kept")
    run(sandbox, code, {"given": "x"})
    assert [path.name for path in place.iterdir()] == ["neighbour"]
    assert (place / "neighbour").read_text() == "kept"
    assert (Path(ROOT) / "sandbox" / "__init__.py").exists()


OUTSIDE = """
import os
for what in (
    lambda: open({path!r} + "/secret").read(),
    lambda: open({path!r} + "/new", "w"),
    lambda: os.unlink({path!r} + "/secret"),
    lambda: os.rename("given", {path!r} + "/moved"),
    lambda: os.rename({path!r} + "/secret", "mine"),
    lambda: os.link({path!r} + "/secret", "linked"),
    lambda: os.link("given", {path!r} + "/linked"),
    lambda: os.symlink("/", {path!r} + "/link"),
    lambda: os.truncate({path!r} + "/secret", 0),
    lambda: open(os.open({path!r} + "/secret", os.O_RDONLY | os.O_TRUNC)),
    lambda: os.mkfifo("pipe"),
    lambda: os.mknod("device", 0o20666, os.makedev(1, 3)),
    lambda: open("through/secret").read() if not os.symlink({path!r}, "through") else 0,
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.fork(),
):
    try:
        what()
    except OSError:
        continue
    raise SystemExit(1)
os.chmod({path!r} + "/secret", 0o777)
os.utime({path!r} + "/secret", (0, 0))
print("done")
"""


def test_files_outside_stay_as_they_are(sandbox, place):
    outside = place / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    (outside / "secret").chmod(0o644)
    before = (outside / "secret").stat()
    result = run(sandbox, OUTSIDE.format(path=str(outside)), {"given": "x"})
    assert result.verdicts == ("passed",), result
    after = (outside / "secret").stat()
    assert (after.st_mode, after.st_mtime, (outside / "secret").read_text()) == (
        before.st_mode,
        before.st_mtime,
        "kept",
    )
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_the_next_program_finds_nothing_of_the_one_before(sandbox, place):
    assert run(sandbox, "open('left', 'w').close()\nprint('done')").verdicts == ("passed",)
    assert run(sandbox, "import os\nprint('done' if os.listdir('.') == [] else os.listdir('.'))").verdicts == (
        "passed",
    )


def test_a_tree_deeper_than_a_path_can_name_is_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    removal.remove(str(top))
    assert not top.exists()
    removal.remove(str(top))  # and again, when it is gone


def test_removal_does_not_follow_links(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tmp_path / "top" / "folder").mkdir(parents=True)
    (tmp_path / "top" / "link").symlink_to(kept)
    (tmp_path / "top" / "folder" / "link").symlink_to(kept)
    removal.remove(str(tmp_path / "top"))
    assert (kept / "file").exists()
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(OSError):
        removal.remove(str(tmp_path / "link"))
    assert (kept / "file").exists()


def test_abandoned_directories_are_removed_and_those_in_use_are_not(place, monkeypatch):
    monkeypatch.setattr(workdir, "_ABANDONED_SECONDS", -1.0)
    (place / "sandbox-abandoned" / "inner").mkdir(parents=True)
    (place / "other").mkdir()
    used = WorkDirectory({"x": "y"})
    workdir.remove_abandoned.__wrapped__()
    assert {path.name for path in place.iterdir()} == {"other", Path(used.path).name}
    used.remove()


def test_when_the_host_is_killed_its_directory_goes_too(tmp_path):
    tmp_path.chmod(0o755)
    script = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from sandbox.limits import Limits\nfrom sandbox.spec import parse_spec\n"
        "from sandbox.verdicts import run_tests\n"
        "spec = parse_spec({'files': {}, 'tests': [{'stdin': '', 'stdout': ''}]})\n"
        'run_tests(\'import time\\nopen("x", "w").close()\\ntime.sleep(50)\', spec, Limits(wall_s=60))'
    )
    host = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)})
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("sandbox-*/x")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(tmp_path.glob("sandbox-*/x"))
    host.send_signal(signal.SIGKILL)
    host.wait()
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [{"../x": ""}, {"a/b": ""}, {"": ""}, {"..": ""}, {"x": 3}, ["x"]])
def test_names_of_given_files_are_plain(files):
    with pytest.raises(SpecError, match="files"):
        parse_spec({"tests": [{"stdin": "", "stdout": ""}], "files": files})
