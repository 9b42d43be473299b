"""One persistent process for verifiers that may hang, crash or eat memory; it can be killed, and loses only its call.

Not a thread, because those cannot be killed; not a fork, because a forked process inherits locks held by other
threads. The process gets none of our environment's secrets.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from typing import Any

from burnish.contracts.errors import StageError

_MEMORY_MB = 4096
_IMPORT_SECONDS = 120.0
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "HOME", "LANG", "LC_ALL", "TMPDIR")


class VerifierWorker:
    """Calls verifiers one at a time, from any thread. Starts on the first call; `close` ends it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared: set[str] = set()
        self._pending = b""
        self.failures = 0
        """Calls that gave no score: out of time, crashed, or raised."""

    def __enter__(self) -> "VerifierWorker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(self, verifier: str, **arguments: Any) -> float | None:
        """The verifier's score; None when it took longer than the limit, died, raised, or had nothing to say.

        Raises StageError when the package behind the verifier is not installed.
        """
        with self._lock:
            if not self._prepare(verifier):
                self.failures += 1
                return None
            reply = self._exchange({"verifier": verifier, "arguments": arguments}, self._timeout_s)
            if reply is None or "failed" in reply:
                self.failures += 1
                return None
            score = reply["score"]
            return None if score is None else float(score)

    def close(self) -> None:
        """End the process and reap it."""
        with self._lock:
            self._stop()

    def _prepare(self, verifier: str) -> bool:
        """Start the process and import what the verifier needs, which does not count against its limit."""
        if self._process is None:
            self._start()
        if verifier in self._prepared:
            return True
        reply = self._exchange({"prepare": verifier}, _IMPORT_SECONDS)
        if reply is not None and "missing" in reply:
            raise StageError(
                f"reward: the verifier {verifier!r} needs a package: {reply['missing']}; pip install burnish[tasks]"
            )
        if reply is None or "failed" in reply:
            return False
        self._prepared.add(verifier)
        return True

    def _start(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "burnish.rewards.verifiers", str(_MEMORY_MB)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            start_new_session=True,
            bufsize=0,
        )
        self._prepared.clear()
        self._pending = b""

    def _exchange(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Send one line and wait for one; None, and no process, when that fails."""
        deadline = time.monotonic() + timeout_s
        line = json.dumps(message | {"alarm": int(2 * timeout_s) + 2}).encode() + b"\n"
        answer = self._write_and_read(line, deadline)
        if answer is None:
            self._stop()
            return None
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _write_and_read(self, data: bytes, deadline: float) -> bytes | None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        to, back = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(to, False)
        with selectors.DefaultSelector() as selector:
            selector.register(back, selectors.EVENT_READ)
            selector.register(to, selectors.EVENT_WRITE)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                events = selector.select(left) if left > 0 else []
                if not events:
                    return None
                for key, _ in events:
                    if key.fd == back:
                        chunk = os.read(back, 65536)
                        if not chunk:
                            return None
                        self._pending += chunk
                        continue
                    try:
                        data = data[os.write(to, data) :]
                    except BrokenPipeError:
                        return None
                    if not data:
                        selector.unregister(to)
        answer, _, self._pending = self._pending.partition(b"\n")
        return answer

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
