"""A service in a process of its own, as tests use it: requests, its log, what is left of it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = {"entry_point": "f", "tests": [{"args": [1], "expected": 2}, {"args": [2], "expected": 3}]}
GOOD = "def f(x): return x + 1"
ENDLESS = "def f(x):\n    while True: pass"


class RunningService:
    """`python -m sandbox serve` with `arguments`; a context manager that leaves no process."""

    def __init__(self, *arguments, port=0, token=None):
        self.token = token
        environment = {"PATH": os.environ["PATH"]} | ({"BURNISH_SANDBOX_TOKEN": token} if token else {})
        command = [sys.executable, "-m", "sandbox", "serve", f"--port={port}", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        self.log = []
        self._news = queue.SimpleQueue()
        threading.Thread(target=self._follow, daemon=True).start()
        self.port = self.event("listening")["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _follow(self):
        for line in self.process.stderr:
            self._news.put(line)
        self._news.put(None)

    def event(self, name):
        """The next event called `name` in its log."""
        while (line := self._news.get(timeout=20)) is not None:
            self.log.append(line)
            if json.loads(line)["event"] == name:
                return json.loads(line)
        raise AssertionError(f"the service ended without {name!r}: {''.join(self.log)}")

    def connect(self):
        return HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method, path, body=None, headers=None, connection=None):
        """Status, parsed body, headers."""
        connection = connection or self.connect()
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        text = body if isinstance(body, bytes | str | None) else json.dumps(body)
        connection.request(method, path, text, given | (headers or {}))
        answer = connection.getresponse()
        text = answer.read()
        plain = answer.getheader("Content-Type").startswith("text/plain")
        return answer.status, text.decode() if plain else json.loads(text), dict(answer.getheaders())

    def submit(self, job_id, code=GOOD, **fields):
        return self.ask("POST", "/v1/jobs", {"job_id": job_id, "code": code, "spec": SPEC, **fields})

    def result(self, job_id, wait_s=20):
        _, body, _ = self.ask("POST", "/v1/jobs/poll", {"ids": [job_id], "wait_s": wait_s})
        return body["finished"][0]["result"] if body["finished"] else None

    def metric(self, name):
        _, text, _ = self.ask("GET", "/metrics")
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} ")), None)

    def stop(self):
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)
