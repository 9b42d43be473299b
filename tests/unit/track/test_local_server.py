import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.contracts.errors import BurnishError
from burnish.track.local_server import MlflowServer, start_mlflow


def processes_of(home: Path) -> list[int]:
    """Pids of the processes whose command line or working folder names `home`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            named = str(home).encode() in (entry / "cmdline").read_bytes() or os.readlink(entry / "cwd") == str(home)
            if named and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_the_server_answers_is_shared_and_leaves_no_process_behind(tmp_path):
    with start_mlflow(tmp_path) as server:
        server.wait_ready()
        second = MlflowServer(tmp_path)
        second.start()
        assert second.uri == server.uri
        second.stop()
        assert server.is_ready()
        assert (tmp_path / "mlflow.db").exists()
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "mlflow.pid").exists()
    assert not server.is_ready()


def test_the_server_dies_with_a_parent_that_was_killed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from burnish.track.local_server import MlflowServer;"
        "server = MlflowServer(Path(sys.argv[1])); server.start(); print(server.port, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "home")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        # Supervisor and server; the parent names the folder as well.
        assert wait_until(lambda: len(processes_of(tmp_path / "home")) >= 3, 20)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not processes_of(tmp_path / "home"), 60)


def test_a_pid_file_of_another_process_is_not_believed(tmp_path):
    (tmp_path / "mlflow.pid").write_text(f'{{"pid": {os.getpid()}, "port": 1}}')
    assert MlflowServer(tmp_path)._running_port() is None
    (tmp_path / "mlflow.pid").write_text("nonsense")
    assert MlflowServer(tmp_path)._running_port() is None


def test_a_taken_port_is_one_clear_error(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BurnishError, match=f"port {port} for MLflow cannot be used"):
            MlflowServer(tmp_path, port).start()


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "mlflow.py").write_text("raise SystemExit('the database is from the future')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = MlflowServer(tmp_path / "home")
    server.start()
    try:
        with pytest.raises(BurnishError, match=r"MLflow server ended with status 1; .*the database is from the future"):
            server.wait_ready()
    finally:
        server.stop()
