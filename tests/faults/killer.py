"""Kills a process at a moment that is the same every time: when a request of its comes to a point in the proxy."""

import os
import signal
import threading
from queue import Queue

from faulty_proxy import Answer, Point, Request


class Killer:
    """A hook that kills the process it is given at the `number`th time that a request comes to the point `at`."""

    def __init__(self, at: Point, number: int = 0) -> None:
        self.at, self.number = at, number
        self.seen = 0
        self._pid: Queue[int] = Queue()
        self._lock = threading.Lock()

    def aim(self, pid: int) -> None:
        self._pid.put(pid)

    def __call__(self, point: Point, request: Request) -> Answer | None:
        with self._lock:
            self.seen += point == self.at
            if (point, self.seen) == (self.at, self.number):
                os.kill(self._pid.get(), signal.SIGKILL)
        return None
