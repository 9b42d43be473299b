"""The host's end: start the zygote, start programs in it, serve and watch them, end them in time.

A `Zygote` belongs to one thread. All its running programs are served by one loop, so a program that fills its
output while another is waited for blocks neither.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sandbox.child import Child, Exit, answer_limit
from sandbox.confine import PLAIN, Jail
from sandbox.launch import SandboxUnavailable, launch
from sandbox.limits import Limits
from sandbox.watch import excess
from sandbox.workdir import WorkDirectory
from sandbox.zygote import MAX_MESSAGE

__all__ = ["Child", "SandboxUnavailable", "Zygote", "answer_limit"]

_START_SECONDS = 30.0
# Between two looks at a watched program, and how many times longer than a look itself the pause is at least.
_PAUSE_SECONDS, _PAUSE_RATIO = 0.02, 10
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_KILLED = Exit(-signal.SIGKILL)


class Zygote:
    """The clean interpreter and the loop around its programs. Raises SandboxUnavailable."""

    def __init__(
        self,
        allow_degraded: bool = False,
        interrupt: int | None = None,
        preload: Sequence[str] = (),
        enclosure: str = "none",
    ) -> None:
        self._process, ours, uid = launch(preload, enclosure)
        self._control = ours
        self._children: dict[int, Child] = {}
        self._jobs = 0
        self._next_look = 0.0
        self._selector = selectors.DefaultSelector()
        ours.settimeout(_START_SECONDS)
        try:
            # Its process id comes along, as seen from here.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            line, credentials, _, _ = ours.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(_CREDENTIALS.size))
            hello = json.loads(line)
            self._pid: int = _CREDENTIALS.unpack(credentials[0][2])[0]
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        except (OSError, ValueError):
            self.close()
            raise SandboxUnavailable("the sandbox's zygote did not start") from None
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, self._on_control)
        if interrupt is not None:  # while it is readable, whatever runs is ended
            self._selector.register(interrupt, selectors.EVENT_READ, lambda: self._kill_all("internal"))
        self._enclosed = enclosure != "none"
        self.uid: int | None = uid if self._enclosed else hello["uid"]
        """The user that programs run as; None: ours."""
        self.missing: list[str] = hello["missing"] + [f"a way to stop: {door}" for door in hello["escapes"]]
        if self.missing and not allow_degraded:
            self.close()
            raise SandboxUnavailable(f"this machine lacks {'; '.join(self.missing)}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and self._control.fileno() >= 0

    def start(
        self,
        job: dict[str, Any],
        limits: Limits,
        stdin: bytes = b"",
        *,
        peer: Child | None = None,
        jail: Jail = PLAIN,
        directory: WorkDirectory | None = None,
    ) -> Child:
        """Start a program. `peer` is a serving one whose questions and answers become this one's business."""
        self._jobs += 1
        child = Child(self._jobs, limits, jail, directory, self._selector, self.kill)
        stdin_read, stdin_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        questions_read, child.questions = os.pipe()
        child.answer, answer_write = os.pipe()
        handed = [stdin_read, out_write, err_write, questions_read, answer_write]
        if peer is not None:
            handed += peer.detach()
        self._children[child.job] = child
        child.read(out_read, lambda data: child.take_output("out", data))
        child.read(err_read, lambda data: child.take_output("err", data))
        child.read(child.answer, child.take_answer)
        child.write(child.questions, json.dumps(job).encode() + b"\n")
        child.write(stdin_write, stdin, then_close=True)
        message: dict[str, Any] = {"start": child.job, "limits": vars(limits)}
        if child.watched:
            message["jail"] = asdict(jail)
            self._next_look = time.monotonic() + _PAUSE_SECONDS
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], handed)
        except OSError:
            self._zygote_died()
        finally:
            for descriptor in handed:
                os.close(descriptor)
        return child

    def ask(self, child: Child, question: bytes) -> None:
        """Queue one line for a serving child."""
        if child.questions is not None and not child.over:
            child.write(child.questions, question + b"\n")

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
            child.stop_writing(child.questions)
            child.questions = None
        self.run(lambda: child.over, deadline)
        if child.jail.changes and child.cause is None:
            # What it did since the last look counts too.
            child.cause, child.detail = excess(child, self._pid) or (None, "")

    def run(self, until: Callable[[], bool], deadline: float) -> None:
        """Serve all children until `until` holds; past the deadline (time.monotonic) they are killed."""
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill_all("timeout")
                left = _START_SECONDS
            events = self._selector.select(min(left, self._watch()))
            if not events and time.monotonic() > deadline + _START_SECONDS:
                self._zygote_died()
            for key, _ in events:
                # An earlier event of this round may have ended what this one is about.
                if key.fd in self._selector.get_map():
                    key.data()

    def kill(self, child: Child, cause: str, detail: str = "") -> None:
        if child.over or child.cause is not None:
            return
        child.cause, child.detail = cause, detail
        try:
            self._control.send(json.dumps({"kill": child.job}).encode())
        except OSError:
            self._zygote_died()

    def _kill_all(self, cause: str) -> None:
        for child in list(self._children.values()):
            self.kill(child, cause, f"no end within {child.limits.wall_s:g} s" if cause == "timeout" else "interrupted")

    def close(self) -> None:
        """End the zygote and with it everything in it."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in list(self._children.values()):
            self._over(child, _KILLED)
        self._selector.close()

    def _watch(self) -> float:
        """Look after the limits that the kernel does not keep, when it is time; returns seconds until the next look."""
        watched = [child for child in self._children.values() if child.watched]
        if not watched:
            return _START_SECONDS
        now = time.monotonic()
        if now >= self._next_look:
            for child in watched:
                found = excess(child, self._pid)
                if found:
                    self.kill(child, *found)
            done = time.monotonic()
            self._next_look = done + max(_PAUSE_SECONDS, _PAUSE_RATIO * (done - now))
            now = done
        return self._next_look - now

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
        child = self._children.get(message["job"])
        if child is None:
            return
        if "group" in message:
            # In an enclosure it is a number of another world, and all in it ends with the enclosure.
            child.group = None if self._enclosed else message["group"]
        else:
            self._over(child, Exit(**message["exit"]))

    def _over(self, child: Child, how: Exit) -> None:
        child.finish(how)
        self._children.pop(child.job, None)

    def _zygote_died(self) -> None:
        """Programs die with it; the children they had must be ended from here."""
        for child in list(self._children.values()):
            child.cause = child.cause or "internal"
            if child.group is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.group, signal.SIGKILL)
            self._over(child, _KILLED)
        self._process.kill()
        # Its socket closes a moment before it is over, and until then it would pass for alive.
        self._process.wait()
