"""What attacks are let loose on: a secret, a listener, a victim, a folder that everybody may write to.

All of it is made for the purpose and thrown away; `harm` says what has happened to it.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_KEPT = "as it was"


class Scene:
    """Put it up before the sandbox is started, so that the sandbox could inherit what it must not."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.folder = Path(tempfile.mkdtemp(prefix="sandbox-scene-"))
        self.outdoors = self.folder / "outdoors"
        self.secret = self.folder / "secret"
        self.work = self.folder / "work"

    def __enter__(self) -> "Scene":
        # Whoever outlives its parent becomes ours, and so is found.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.folder.chmod(0o755)
        self.outdoors.mkdir()
        self.outdoors.chmod(0o777)
        # Work directories are made in here for as long as the scene stands, so that what is left of them is seen.
        self.work.mkdir()
        self._temporary, tempfile.tempdir = tempfile.tempdir, str(self.work)
        self.secret.write_text(self.token)
        self.secret.chmod(0o644)
        (self.outdoors / "kept").write_text(_KEPT)
        (self.outdoors / "kept").chmod(0o666)
        # The zygote puts its own on the low numbers.
        with open(self.secret, "rb") as file:
            self._inherited = fcntl.fcntl(file, fcntl.F_DUPFD, 64)
        os.environ["SANDBOX_CANARY"] = self.token
        self._victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(900)"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(self._listener.getsockname())
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind(f"\0sandbox-scene-{self.token[:8]}")
        self._abstract.listen()
        for listening in (self._listener, self._datagrams, self._abstract):
            listening.setblocking(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for listening in (self._listener, self._datagrams, self._abstract):
            listening.close()
        self._victim.kill()
        self._victim.wait()
        os.environ.pop("SANDBOX_CANARY", None)
        os.close(self._inherited)
        tempfile.tempdir = self._temporary
        shutil.rmtree(self.folder)

    def fill(self, text: str) -> str:
        """`text` with what is between two @ replaced by what has been put up."""
        places = {
            "secret": self.secret,
            "token": self.token,
            "outdoors": self.outdoors,
            "port": self._listener.getsockname()[1],
            "abstract": f"sandbox-scene-{self.token[:8]}",
            "victim": self._victim.pid,
            "host": os.getpid(),
        }
        for name, value in places.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def fill_tests(self, tests: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return list(json.loads(self.fill(json.dumps(tests))))

    def harm(self) -> list[str]:
        """What has happened since it was put up, or since the last call, which made it good again."""
        found = []
        for listening, what in ((self._listener, "TCP connection"), (self._abstract, "abstract socket connection")):
            with contextlib.suppress(BlockingIOError):
                listening.accept()[0].close()
                found.append(f"a {what} arrived")
        with contextlib.suppress(BlockingIOError):
            self._datagrams.recv(1)
            found.append("a datagram arrived")
        if self._victim.poll() is not None or _state(self._victim.pid) in "Tt":
            found.append("the victim was ended or stopped")
            with contextlib.suppress(ProcessLookupError):
                self._victim.send_signal(signal.SIGCONT)
        if list(self.work.iterdir()):
            found.append("a work directory is still there")
        return found + self._changed_files()

    def _changed_files(self) -> list[str]:
        names = {path.name for path in self.outdoors.iterdir()}
        for name in names - {"kept"}:
            path = self.outdoors / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        found = [f"{name} appeared outside" for name in sorted(names - {"kept"})]
        kept = self.outdoors / "kept"
        if "kept" not in names or kept.read_text() != _KEPT or kept.stat().st_mode & 0o777 != 0o666:
            found.append("a file outside was changed")
            kept.write_text(_KEPT)
            kept.chmod(0o666)
        return found


def descendants() -> set[int]:
    """Ids of this process's descendants, zombies included."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def left_behind(before: set[int], patience_s: float = 1.0) -> set[int]:
    """Descendants that were not there before and do not go away by themselves."""
    deadline = time.monotonic() + patience_s
    while (left := descendants() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
