"""One program in the sandbox, as the host sees it: its pipes, what came out of them, how it ended."""

import contextlib
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.confine import PLAIN, Jail
from sandbox.limits import Limits
from sandbox.workdir import WorkDirectory

_CHUNK = 65536


@dataclass(frozen=True)
class Exit:
    """What the kernel tells of a process that ended."""

    status: int
    """Exit code, or minus the signal."""
    peak_mb: float = 0.0
    """Most memory it had at a time."""
    cpu_s: float = 0.0
    """Of it and of the children it waited for."""


@dataclass
class Child:
    """A program that was started; `selector` is that of the loop that serves it."""

    job: int
    limits: Limits
    jail: Jail
    directory: WorkDirectory | None
    selector: selectors.BaseSelector
    exceed: Callable[["Child", str, str], None]
    """Called with a verdict and a detail when it does too much."""
    captured: dict[str, bytearray] = field(default_factory=lambda: {"out": bytearray(), "err": bytearray()})
    answers: bytearray = field(default_factory=bytearray)
    """What it said and nobody has read yet."""
    outbox: dict[int, bytearray] = field(default_factory=dict)
    """What it is still to be told, by descriptor."""
    questions: int | None = None
    answer: int | None = None
    open: set[int] = field(default_factory=set)
    """Descriptors the loop still reads."""
    group: int | None = None
    """Its process group, where it may have processes."""
    cause: str | None = None
    """The verdict with which the host ended it, or internal when the zygote died."""
    detail: str = ""
    exit: Exit | None = None
    """Once it is over."""

    @property
    def over(self) -> bool:
        return self.exit is not None

    @property
    def watched(self) -> bool:
        """Whether it must be looked at now and then, because the kernel does not keep all its limits."""
        return not self.over and self.cause is None and self.jail != PLAIN

    def read(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        """Hand on what comes out of a pipe."""
        os.set_blocking(descriptor, False)
        self.open.add(descriptor)

        def on_ready() -> bool:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return False
            if data:
                take(data)
            else:
                self.stop_reading(descriptor)
            return bool(data)

        self.selector.register(descriptor, selectors.EVENT_READ, on_ready)

    def write(self, descriptor: int, data: bytes, then_close: bool = False) -> None:
        """Put more into a pipe: now what fits, the rest as it empties."""
        os.set_blocking(descriptor, False)
        pending = self.outbox.setdefault(descriptor, bytearray())
        pending += data

        def empty() -> None:
            try:
                del pending[: os.write(descriptor, pending)]
            except BlockingIOError:
                return
            except BrokenPipeError:
                pending.clear()

        def on_ready() -> None:
            empty()
            if not pending:
                self.selector.unregister(descriptor)
                if then_close:
                    self.stop_writing(descriptor)

        if descriptor in self.selector.get_map():
            return
        if pending:
            empty()
        if pending:
            self.selector.register(descriptor, selectors.EVENT_WRITE, on_ready)
        elif then_close:
            self.stop_writing(descriptor)

    def take_output(self, stream: str, data: bytes) -> None:
        room = self.limits.output_kb * 1024 - sum(map(len, self.captured.values()))
        self.captured[stream] += data[:room]
        if len(data) > room:
            self.exceed(self, "output_limit", f"more than {self.limits.output_kb} KiB of output")

    def take_answer(self, data: bytes) -> None:
        self.answers += data
        if len(self.answers) > answer_limit(self.limits):
            self.answers.clear()
            self.exceed(self, "output_limit", f"a value of more than {self.limits.output_kb} KiB")

    def finish(self, how: Exit) -> None:
        """It ended: take what lies in its pipes and let go of them."""
        for descriptor in list(self.open):
            while descriptor in self.open and self.selector.get_key(descriptor).data():
                pass
            self.stop_reading(descriptor)
        for descriptor in list(self.outbox):
            self.stop_writing(descriptor)
        self.exit = how

    def detach(self) -> list[int]:
        """Take its two answering pipes out of the loop, blocking again, for another process."""
        assert self.questions is not None
        assert self.answer is not None
        assert not self.answers  # it cannot have said anything before its job was flushed
        pipes = [self.questions, self.answer]
        for descriptor in pipes:
            with contextlib.suppress(KeyError):
                self.selector.unregister(descriptor)
            os.set_blocking(descriptor, True)
        self.outbox.pop(self.questions, None)
        self.open.discard(self.answer)
        self.questions = self.answer = None
        return pipes

    def stop_reading(self, descriptor: int) -> None:
        if descriptor in self.open:
            self.open.remove(descriptor)
            self.selector.unregister(descriptor)
            os.close(descriptor)

    def stop_writing(self, descriptor: int) -> None:
        if self.outbox.pop(descriptor, None) is not None:
            with contextlib.suppress(KeyError):
                self.selector.unregister(descriptor)
            os.close(descriptor)


def answer_limit(limits: Limits) -> int:
    """Bytes that one answer may have."""
    return limits.output_kb * 1024 + _CHUNK
