"""A clean interpreter that forks one process per job and ends them when told; it never sees what they run.

Its only tie to the host is one socket: `start` comes with the descriptors of the new process, `kill` names one,
`exit` goes back. When the socket closes, everything here ends, and nothing of it stays.
"""

import fcntl
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
from typing import Any

from sandbox import harness, libc
from sandbox.confine import PLAIN, Confinement, Jail, confine, die_with_parent, escapes, missing_protections, prepare
from sandbox.limits import Limits
from sandbox.preload import import_all
from sandbox.processes import children
from sandbox.removal import remove

MAX_MESSAGE = 65536
MAX_DESCRIPTORS = 16
_PR_SET_CHILD_SUBREAPER = 36
_limits = functools.lru_cache(Limits)

# Imported before the fork, so that programs find them at once.
_PRELOADED = (
    "abc", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools",
    "heapq", "itertools", "math", "operator", "re", "statistics", "string", "time", "typing",
)  # fmt: skip


def main(descriptor: int, preload: list[str], folders: list[str]) -> None:
    """Serve on the socket `descriptor` until it closes, with the modules `preload` of `folders` imported."""
    for name in _PRELOADED:
        importlib.import_module(name)
    # Nothing below the stage's own packages is importable from here on.
    sys.path = [path for path in sys.path if "site-packages" not in path and path not in {"", os.getcwd()}]
    control = socket.socket(fileno=_above_all_targets(descriptor))
    prepared, missing = prepare(import_all(preload, folders)), missing_protections()
    found = [] if missing else _try_the_doors(prepared)
    # Processes whose parent ended become ours, so that we can end and wait for them.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"missing": missing, "escapes": found, "uid": prepared.uid}).encode())
    _Server(control, prepared).serve()


def _above_all_targets(control: int) -> int:
    """Move the socket up and fill the numbers below it: none received is then one that a new process gives away."""
    moved = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, MAX_DESCRIPTORS)
    os.close(control)
    for number in range(3, moved):
        os.dup2(0, number, inheritable=False)
    return moved


class _Server:
    def __init__(self, control: socket.socket, prepared: Confinement) -> None:
        self._control, self._prepared = control, prepared
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._pids: dict[int, int] = {}  # job -> pid
        self._jobs: dict[int, int] = {}  # pidfd -> job
        self._crowds: set[int] = set()  # jobs that may have had more than one process
        self._directory: str | None = None

    def serve(self) -> None:
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor != self._control.fileno():
                    self._bury(descriptor)
                    continue
                data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, MAX_DESCRIPTORS)
                if not data:
                    self._end()
                message = json.loads(data)
                if "start" in message:
                    self._start(message, descriptors)
                elif message["kill"] in self._pids:
                    _kill_group(self._pids[message["kill"]])

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        job, jail = message["start"], Jail(**message["jail"]) if "jail" in message else PLAIN
        self._directory = jail.directory or self._directory
        pid = _fork(descriptors, _limits(**message["limits"]), self._prepared, jail)
        for received in descriptors:
            os.close(received)
        pidfd = os.pidfd_open(pid)
        self._pids[job], self._jobs[pidfd] = pid, job
        self._poller.register(pidfd, select.POLLIN)
        if jail.processes or not self._prepared.filters:
            self._crowds.add(job)
        if jail.processes:
            self._tell({"job": job, "group": pid})

    def _bury(self, pidfd: int) -> None:
        """A program's first process ended: so do all others it had."""
        job = self._jobs.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = self._pids.pop(job)
        crowd = job in self._crowds
        if crowd:
            # Ours until it is reaped, so its group cannot be somebody else's by now.
            _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        if crowd:
            self._crowds.remove(job)
            self._clear_away(pid)
        how = {"status": os.waitstatus_to_exitcode(status), "peak_mb": usage.ru_maxrss / 1024}
        self._tell({"job": job, "exit": how | {"cpu_s": usage.ru_utime + usage.ru_stime}})

    def _clear_away(self, group: int) -> None:
        _reap(-group)
        if not self._pids:
            # Without the system-call filter they could have left the group.
            while strays := children(os.getpid()):
                for stray in strays:
                    os.kill(stray, signal.SIGKILL)
                _reap(-1)

    def _end(self) -> None:
        """The host is gone, or wants no more: leave no process and no file."""
        for pid in self._pids.values():
            _kill_group(pid)
        _reap(-1)
        if self._directory is not None:
            remove(self._directory)
        os._exit(0)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            self._end()


def _fork(descriptors: list[int], limits: Limits, prepared: Confinement, jail: Jail) -> int:
    parent = os.getpid()
    prepared.system_calls(jail)  # made once, here
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        die_with_parent(parent)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        kept = len(descriptors) if prepared.ruleset is None else prepared.ruleset
        os.closerange(len(descriptors), kept)
        os.closerange(kept + 1, 1 << 16)
        random.seed(0)  # Python reseeds after a fork; the same program must do the same thing every time
        harness.run(lambda: confine(limits, prepared, jail))
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc(limit=-8)
        os._exit(1)
    os._exit(0)


def _try_the_doors(prepared: Confinement) -> list[str]:
    """Confine a process and let it try: protections that are there but do not protect count as missing."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        confine(Limits(), prepared)
        os.write(write, json.dumps(escapes()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return list(json.loads(answer)) if answer else ["the confined process died"]


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _reap(which: int) -> None:
    """Wait for children until there are none: all (-1), or those of a group (minus its number)."""
    try:
        while True:
            os.waitpid(which, 0)
    except ChildProcessError:
        return
