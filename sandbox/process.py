"""The host's end: start the zygote, start programs in it, feed and drain them, end them in time.

A `Zygote` belongs to one thread. All its running programs are served by one loop, so a program that fills its
output while another is waited for blocks neither.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sandbox.limits import Limits
from sandbox.zygote import MAX_MESSAGE

_CHUNK = 65536
_START_SECONDS = 30.0


class SandboxUnavailable(RuntimeError):
    """This machine cannot confine programs, or the zygote could not be started; the message says why."""


@dataclass
class Child:
    """One program in the sandbox, as the host sees it."""

    job: int
    limits: Limits
    captured: dict[str, bytearray] = field(default_factory=lambda: {"out": bytearray(), "err": bytearray()})
    answers: bytearray = field(default_factory=bytearray)
    """What it said and nobody has read yet."""
    outbox: dict[int, bytearray] = field(default_factory=dict)
    """What it is still to be told, by descriptor."""
    questions: int | None = None
    answer: int | None = None
    open: set[int] = field(default_factory=set)
    """Descriptors the loop still reads."""
    cause: str | None = None
    """Why the host ended it: timeout, output_limit, or internal when the zygote died."""
    status: int | None = None
    """Exit code, or minus the signal, once it is over."""

    @property
    def over(self) -> bool:
        return self.status is not None


class Zygote:
    """The clean interpreter and the loop around its programs. Raises SandboxUnavailable."""

    def __init__(self, allow_degraded: bool = False, interrupt: int | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parent.parent)
        start = f"import sys; sys.path.insert(0, {root!r}); from sandbox.zygote import main; "
        start += f"sys.path.remove({root!r}); main({theirs.fileno()})"
        # -E is left out for PYTHONHASHSEED alone: the same program must do the same thing every time.
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", "-c", start],
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        self._children: dict[int, Child] = {}
        self._jobs = 0
        self._selector = selectors.DefaultSelector()
        ours.settimeout(_START_SECONDS)
        try:
            hello = json.loads(ours.recv(MAX_MESSAGE))
        except (OSError, ValueError):
            self.close()
            raise SandboxUnavailable("the sandbox's zygote did not start") from None
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, self._on_control)
        if interrupt is not None:  # while it is readable, whatever runs is ended
            self._selector.register(interrupt, selectors.EVENT_READ, lambda: self._kill_all("internal"))
        self.missing: list[str] = hello["missing"] + [f"a way to stop: {door}" for door in hello["escapes"]]
        if self.missing and not allow_degraded:
            self.close()
            raise SandboxUnavailable(f"this machine lacks {'; '.join(self.missing)}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and self._control.fileno() >= 0

    def start(self, job: dict[str, Any], limits: Limits, stdin: bytes = b"", peer: Child | None = None) -> Child:
        """Start a program. `peer` is a serving one whose questions and answers become this one's business."""
        self._jobs += 1
        child = Child(self._jobs, limits)
        stdin_read, stdin_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        questions_read, child.questions = os.pipe()
        child.answer, answer_write = os.pipe()
        handed = [stdin_read, out_write, err_write, questions_read, answer_write]
        if peer is not None:
            handed += self._detach(peer)
        self._children[child.job] = child
        self._read(child, out_read, lambda data: self._on_output(child, "out", data))
        self._read(child, err_read, lambda data: self._on_output(child, "err", data))
        self._read(child, child.answer, lambda data: self._on_answer(child, data))
        self._write(child, child.questions, json.dumps(job).encode() + b"\n")
        self._write(child, stdin_write, stdin, then_close=True)
        try:
            message = json.dumps({"start": child.job, "limits": asdict(limits)}).encode()
            socket.send_fds(self._control, [message], handed)
        except OSError:
            self._zygote_died()
        finally:
            for descriptor in handed:
                os.close(descriptor)
        return child

    def ask(self, child: Child, question: bytes) -> None:
        """Queue one line for a serving child."""
        if child.questions is not None and not child.over:
            self._write(child, child.questions, question + b"\n")

    def read_line(self, child: Child, deadline: float) -> bytes | None:
        """The next line it says; None when it ended, or was ended, without one."""
        self.run(lambda: b"\n" in child.answers or child.over, deadline)
        line, newline, rest = child.answers.partition(b"\n")
        child.answers = bytearray(rest)
        return bytes(line) if newline else None

    def flush(self, child: Child, deadline: float) -> None:
        """Wait until everything queued for it is on its way."""
        self.run(lambda: not any(child.outbox.values()) or child.over, deadline)

    def end(self, child: Child, deadline: float) -> None:
        """Let it come to its end: no more questions, and what it still says is kept."""
        if child.questions is not None:
            self._stop_writing(child, child.questions)
            child.questions = None
        self.run(lambda: child.over, deadline)

    def run(self, until: Callable[[], bool], deadline: float) -> None:
        """Serve all children until `until` holds; past the deadline (time.monotonic) they are killed."""
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill_all("timeout")
                left = _START_SECONDS
            events = self._selector.select(left)
            if not events and time.monotonic() > deadline + _START_SECONDS:
                self._zygote_died()
            for key, _ in events:
                # An earlier event of this round may have ended what this one is about.
                if key.fd in self._selector.get_map():
                    key.data()

    def kill(self, child: Child, cause: str) -> None:
        if child.over or child.cause is not None:
            return
        child.cause = cause
        try:
            self._control.send(json.dumps({"kill": child.job}).encode())
        except OSError:
            self._zygote_died()

    def _kill_all(self, cause: str) -> None:
        for child in list(self._children.values()):
            self.kill(child, cause)

    def close(self) -> None:
        """End the zygote and with it everything in it."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in list(self._children.values()):
            self._over(child, -9)
        self._selector.close()

    def _read(self, child: Child, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        child.open.add(descriptor)

        def on_ready() -> bool:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return False
            if data:
                take(data)
            else:
                self._stop_reading(child, descriptor)
            return bool(data)

        self._selector.register(descriptor, selectors.EVENT_READ, on_ready)

    def _write(self, child: Child, descriptor: int, data: bytes, then_close: bool = False) -> None:
        os.set_blocking(descriptor, False)
        pending = child.outbox.setdefault(descriptor, bytearray())
        pending += data

        def on_ready() -> None:
            try:
                del pending[: os.write(descriptor, pending)]
            except BlockingIOError:
                return
            except BrokenPipeError:
                pending.clear()
            if not pending:
                self._selector.unregister(descriptor)
                if then_close:
                    self._stop_writing(child, descriptor)

        if pending and descriptor not in self._selector.get_map():
            self._selector.register(descriptor, selectors.EVENT_WRITE, on_ready)
        elif not pending and then_close:
            self._stop_writing(child, descriptor)

    def _on_output(self, child: Child, stream: str, data: bytes) -> None:
        room = child.limits.output_kb * 1024 - sum(map(len, child.captured.values()))
        child.captured[stream] += data[:room]
        if len(data) > room:
            self.kill(child, "output_limit")

    def _on_answer(self, child: Child, data: bytes) -> None:
        child.answers += data
        if len(child.answers) > answer_limit(child.limits):
            child.answers.clear()
            self.kill(child, "output_limit")

    def _on_control(self) -> None:
        try:
            data = self._control.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._zygote_died()
        message = json.loads(data)
        child = self._children.get(message["exit"])
        if child is not None:
            self._over(child, message["status"])

    def _over(self, child: Child, status: int) -> None:
        """It ended: take what lies in its pipes and let go of them."""
        for descriptor in list(child.open):
            while descriptor in child.open and self._selector.get_key(descriptor).data():
                pass
            self._stop_reading(child, descriptor)
        for descriptor in list(child.outbox):
            self._stop_writing(child, descriptor)
        child.status = status
        self._children.pop(child.job, None)

    def _detach(self, peer: Child) -> list[int]:
        """Take a serving child's two pipes out of the loop, blocking again, for another process."""
        assert peer.questions is not None
        assert peer.answer is not None
        assert not peer.answers  # it cannot have said anything before its job was flushed
        pipes = [peer.questions, peer.answer]
        for descriptor in pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.set_blocking(descriptor, True)
        peer.outbox.pop(peer.questions, None)
        peer.open.discard(peer.answer)
        peer.questions = peer.answer = None
        return pipes

    def _stop_reading(self, child: Child, descriptor: int) -> None:
        if descriptor in child.open:
            child.open.remove(descriptor)
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def _stop_writing(self, child: Child, descriptor: int) -> None:
        if child.outbox.pop(descriptor, None) is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)

    def _zygote_died(self) -> None:
        for child in list(self._children.values()):
            child.cause = child.cause or "internal"
            self._over(child, -9)
        self._process.kill()


def answer_limit(limits: Limits) -> int:
    """Bytes that one answer may have."""
    return limits.output_kb * 1024 + _CHUNK
