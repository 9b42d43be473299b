"""The MLflow server of a run without a cluster: on loopback, over SQLite in the home folder, gone when we are gone.

It needs 15 to 20 s to come up, so `start` returns at once and only those who need it wait. Run as a module, this
file is the server's supervisor: `mlflow server` starts children that nobody else would stop.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from burnish.contracts.errors import BurnishError

READY_SECONDS = 180.0
STOP_SECONDS = 3.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@contextlib.contextmanager
def start_mlflow(home: Path, port: int = 0) -> Iterator["MlflowServer"]:
    """The server of `home` runs while the block does; it may not answer yet. See `MlflowServer`."""
    server = MlflowServer(home, port)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class MlflowServer:
    """An MLflow server with `mlflow.db`, `mlartifacts/`, pid file and log in the folder `home`.

    Start it from a thread that lives as long as the server shall: the kernel ends the server with that thread.
    A server that already runs for this home is used and left running.
    """

    def __init__(self, home: Path, port: int = 0) -> None:
        """`port`: where it shall listen; 0 takes a free one."""
        self.home = home.absolute()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The tracking URI, and the address of the user interface."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server without waiting for it. Raises BurnishError: MLflow is not installed, the port is taken."""
        if importlib.util.find_spec("mlflow") is None:
            raise BurnishError("MLflow is not installed: pip install 'burnish[track]', or run with --no-mlflow")
        self.home.mkdir(parents=True, exist_ok=True)
        running = self._running_port()
        if running:
            self.port = running
            return
        self.port = _free_port(self.port)
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", f"sqlite:///{self.home / 'mlflow.db'}", "--workers", "1"),
            *("--artifacts-destination", str(self.home / "mlartifacts")),
            *("--uvicorn-opts", "--timeout-graceful-shutdown 1 --log-level warning"),
        ]
        hidden = ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # Its job queue starts four more processes, for features that a run does not use.
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        with open(self.home / "mlflow.log", "ab") as log:
            # A session of its own: Ctrl-C in the terminal stops the stages first and the server after them.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "burnish.track.local_server", str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment,
                start_new_session=True,
            )
        draft = self._pid_file.with_suffix(".tmp")
        draft.write_text(json.dumps({"pid": self._process.pid, "port": self.port}))
        draft.replace(self._pid_file)

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until it answers. Raises BurnishError with the end of its log when it does not."""
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                what = f"ended with status {self._process.returncode}" if ended and self._process else "does not answer"
                raise BurnishError(
                    f"the MLflow server {what}; last lines of {self.home / 'mlflow.log'}: {self._tail()}"
                )
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the server if this object started it; the data stay."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(3 * STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    @property
    def _pid_file(self) -> Path:
        return self.home / "mlflow.pid"

    def _running_port(self) -> int | None:
        """Port of the server that already runs for this home. Pids are used again, so the command line decides."""
        try:
            noted = json.loads(self._pid_file.read_text())
            arguments = Path(f"/proc/{int(noted['pid'])}/cmdline").read_bytes().split(b"\0")
            mine = f"sqlite:///{self.home / 'mlflow.db'}".encode() in arguments
            return int(noted["port"]) if mine else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _tail(self) -> str:
        lines = (self.home / "mlflow.log").read_text("utf-8", "replace").splitlines()
        return " | ".join(line.strip() for line in lines[-5:] if line.strip())[-800:]


def _free_port(wanted: int) -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise BurnishError(f"port {wanted} for MLflow cannot be used ({error.strerror}); choose another") from None
        return int(listener.getsockname()[1])


def _supervise(parent: int, command: list[str]) -> None:
    """Run `command` until it ends, or until we are told to stop or our parent dies; leave no descendant behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def told(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, told)
    if os.getppid() != parent:
        sys.exit("the process that wanted the MLflow server is gone")
    child = subprocess.Popen(command, process_group=0)
    try:
        sys.exit(child.wait())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            if _reap_all(STOP_SECONDS):
                break


def _reap_all(seconds: float) -> bool:
    """Wait for every descendant; as a subreaper we inherit those whose parent is gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return True
    return False


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), sys.argv[2:])
