"""A rollout server as a process of its own, over a store in a folder, and the policies that are put there."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import urllib3

from burnish.contracts.artifacts import Lineage
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend

TOKEN = "t0ken"


def store_in(path: Path) -> ArtifactStore:
    return ArtifactStore(FolderBackend(path / "store"), BlobCache(path / "cache" / "blobs"))


def put_policy(store, folder, version, kind="policy"):
    metadata = {"policy_version": version}
    return store.put_artifact(kind, folder, lineage=Lineage(stage="test"), counts={}, metadata=metadata)


class RolloutServer:
    """`burnish serve` with the hf engine; `port` stays the same when it is started again."""

    def __init__(self, path: Path, *options: str) -> None:
        self._path, self._options = path, options
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {
            **os.environ, "BURNISH_STORE": str(self._path / "store"), "BURNISH_CACHE": str(self._path / "server-cache"),
            "BURNISH_ROLLOUT_TOKEN": TOKEN, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "burnish.cli.main", "serve", "--engine", "hf", "--device", "cpu", "--threads", "1",
            "--max-length", "64", "--port", str(self.port), *self._options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if line.startswith("{") and (said := json.loads(line))["event"] == "listening":
                self.port = said["port"]
                break
        else:
            raise AssertionError("".join(self.log))

    def stop(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=30)
        self.log += rest.splitlines()
        return self.process.returncode

    def ask(self, method, path, body=None, token=TOKEN):
        """Status and answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = urllib3.request(method, self.url + path, json=body, headers=headers, retries=False)
        return answer.status, json.loads(answer.data) if answer.data.startswith(b"{") else answer.data.decode()
