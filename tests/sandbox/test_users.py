"""The same protection whoever we are: root that can choose a user, and a user without any capability."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sandbox import user
from sandbox.process import SandboxUnavailable
from sandbox.verdicts import Sandbox

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = f"""
import os, sys, tempfile
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from sandbox.limits import Limits
from sandbox.processes import children
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox

def spec(**more):
    return parse_spec({{"tests": [{{"stdin": "1 2", "stdout": "3"}}], **more}})

with Sandbox(Limits(wall_s=10, processes=40), enclosure=sys.argv[1]) as sandbox:
    print("own user:", sandbox._zygote.uid not in (None, 65534))
    print("zygote is root's to read:", os.stat(f"/proc/{{sandbox._zygote._pid}}/mem").st_uid == 0)
    print("python:", *sandbox.run_tests("print(3)", spec()).verdicts)
    print("files:", *sandbox.run_tests("open('x', 'w').write('3'); print(open('x').read())", spec(files={{}})).verdicts)
    print("bash:", *sandbox.run_tests("read a b; echo $((a + b)) | cat", spec(language="bash")).verdicts)
    c = '#include <stdio.h>\\nint main(void) {{ puts("3"); }}'
    print("c:", *sandbox.run_tests(c, spec(language="c")).verdicts)
    bomb = sandbox.run_tests("f() {{ f | f & }}; f; sleep 3; echo 4", spec(language="bash"))
    print("bomb:", bomb.verdicts[0] in ("runtime_error", "wrong"), children(sandbox._zygote._pid))
    chmod = "import os\\nos.mkdir('d', 0)\\nos.chmod('/proc/self', 0o777)"
    print("odd modes:", *sandbox.run_tests(chmod, spec(files={{}})).verdicts)
    kill = f"kill -9 {{os.getpid()}} && echo 3"
    print("kill:", *sandbox.run_tests(kill, spec(language="bash")).verdicts)
    print("left:", list(Path(tempfile.gettempdir()).glob("sandbox-*")))
"""


WORKS = {
    "bwrap": ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"],
    "nsjail": ["nsjail", "-Mo", "--quiet", "--chroot", "/", "--", "/bin/true"],
}
USER: dict[str, Any] = {"user": 12_345, "group": 12_345, "extra_groups": []}


@pytest.fixture
def python() -> str:
    """One that other users can run with the sandbox."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    check = f"import os, sys; os.close(os.open(os.__file__, 0)); sys.path.insert(0, {str(ROOT)!r}); import sandbox.spec"
    for candidate in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([candidate, "-c", check], cwd="/", capture_output=True, **USER).returncode:
                return candidate
    pytest.skip("no Python that other users can run")


def said(python: str, place: Path, enclosure: str = "none", **user: Any) -> dict[str, str]:
    place.chmod(0o777)
    for parent in place.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(place)}
    done = subprocess.run(
        [python, "-c", SCRIPT, enclosure], capture_output=True, text=True, env=environment, timeout=120, cwd="/", **user
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines())


def expected(**more: str) -> dict[str, str]:
    c = "passed" if shutil.which("gcc") else "internal"
    found = {"python": "passed", "files": "passed", "bash": "passed", "c": c, "bomb": "True []"}
    found["zygote is root's to read"] = "True"
    return found | {"kill": "runtime_error", "left": "[]"} | more


def test_root_runs_programs_as_a_user_of_their_own(tmp_path, python):
    assert said(python, tmp_path) == expected(**{"own user": "True", "odd modes": "wrong"})


def test_a_user_without_capabilities_is_as_safe(tmp_path, python):
    # Who cannot look into a folder cannot say how much is in it.
    assert said(python, tmp_path, **USER) == expected(**{"own user": "False", "odd modes": "output_limit"})


@pytest.mark.parametrize(("enclosure", "tool"), [("bubblewrap", "bwrap"), ("nsjail", "nsjail")])
def test_in_a_second_jail_all_is_as_it_was(tmp_path, python, enclosure, tool):
    if shutil.which(tool) is None or subprocess.run(WORKS[tool], capture_output=True, **USER).returncode:
        pytest.skip(f"{tool} is not here, or may not make namespaces")
    assert said(python, tmp_path, enclosure) == expected(**{"own user": "True", "odd modes": "wrong"})


def test_an_enclosure_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(user, "choose", lambda: 12_345)
    with pytest.raises(SandboxUnavailable, match="enclosure nsjail: nsjail is not here: install nsjail"):
        Sandbox(enclosure="nsjail")
