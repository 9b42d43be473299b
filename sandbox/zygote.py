"""A clean interpreter that forks one process per job and ends them when told; it never sees what they run.

Its only tie to the host is one socket: `start` comes with the descriptors of the new process, `kill` names one,
`exit` goes back. When the socket closes, everything here ends.
"""

import fcntl
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

from sandbox import harness
from sandbox.confine import Confinement, confine, die_with_parent, escapes, missing_protections, prepare
from sandbox.limits import Limits

MAX_MESSAGE = 65536
MAX_DESCRIPTORS = 16

# Imported before the fork, so that programs find them at once.
_PRELOADED = (
    "abc", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools",
    "heapq", "itertools", "math", "operator", "re", "statistics", "string", "time", "typing",
)  # fmt: skip


def main(descriptor: int) -> None:
    """Serve on the socket `descriptor` until it closes."""
    for name in _PRELOADED:
        importlib.import_module(name)
    # Nothing below the stage's own packages is importable from here on.
    sys.path = [path for path in sys.path if "site-packages" not in path and path not in {"", os.getcwd()}]
    control = socket.socket(fileno=descriptor)
    prepared, missing = prepare(), missing_protections()
    found = [] if missing else _try_the_doors(prepared)
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"missing": missing, "escapes": found}).encode())
    _serve(control, prepared)


def _serve(control: socket.socket, prepared: Confinement) -> None:
    children: dict[int, int] = {}  # job -> pid
    jobs: dict[int, int] = {}  # pidfd -> job
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor != control.fileno():
                job = jobs.pop(descriptor)
                poller.unregister(descriptor)
                os.close(descriptor)
                # Ours until it is reaped, so its group cannot be somebody else's by now.
                _kill_group(children[job])
                status = os.waitpid(children.pop(job), 0)[1]
                _tell(control, {"exit": job, "status": os.waitstatus_to_exitcode(status)})
                continue
            data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, MAX_DESCRIPTORS)
            if not data:
                for pid in children.values():
                    _kill_group(pid)
                os._exit(0)
            message = json.loads(data)
            if "kill" in message:
                if message["kill"] in children:
                    _kill_group(children[message["kill"]])
                continue
            pid = _fork(descriptors, Limits(**message["limits"]), prepared)
            for received in descriptors:
                os.close(received)
            pidfd = os.pidfd_open(pid)
            children[message["start"]], jobs[pidfd] = pid, message["start"]
            poller.register(pidfd, select.POLLIN)


def _fork(descriptors: list[int], limits: Limits, prepared: Confinement) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        die_with_parent(parent)
        # Up first: a target number may be in use by another of them.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, number)
        kept = len(high) if prepared.ruleset is None else prepared.ruleset
        os.closerange(len(high), kept)
        os.closerange(kept + 1, 1 << 16)
        random.seed(0)  # Python reseeds after a fork; the same program must do the same thing every time
        harness.run(lambda: confine(limits, prepared))
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


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
