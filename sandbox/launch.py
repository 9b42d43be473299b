"""Starting the zygote: a clean interpreter, an empty environment, one socket, and an enclosure where one is wanted."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox import user
from sandbox.enclosure import prefix
from sandbox.preload import ONE_THREAD, folders_of


class SandboxUnavailable(RuntimeError):
    """This machine cannot confine programs, or the zygote could not be started; the message says why."""


def launch(preload: Sequence[str], enclosure: str) -> tuple[subprocess.Popen[bytes], socket.socket, int | None]:
    """The zygote's process, the socket to it, and the user it is in an enclosure. Raises SandboxUnavailable."""
    uid = user.choose() if enclosure != "none" and os.geteuid() == 0 else None
    if enclosure != "none" and os.geteuid() == 0 and uid is None:
        # Root stays root behind the walls of a namespace, where a kernel's file left writable would be enough.
        raise SandboxUnavailable(f"{enclosure} as root needs a Python that other users can run")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).resolve().parent.parent)
    try:
        folders, before = folders_of(preload), prefix(enclosure, theirs.fileno())
        start = f"import sys; sys.path.insert(0, {root!r}); from sandbox.zygote import main; "
        start += f"sys.path.remove({root!r}); main({theirs.fileno()}, {list(preload)!r}, {folders!r})"
        # -E is left out for PYTHONHASHSEED alone: the same program must do the same thing every time.
        process = subprocess.Popen(
            [*before, sys.executable, "-s", "-S", "-P", "-B", "-c", start],
            env={"PYTHONHASHSEED": "0"} | (ONE_THREAD if preload else {}),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except (ModuleNotFoundError, FileNotFoundError, PermissionError) as error:
        ours.close()
        raise SandboxUnavailable(str(error)) from None
    finally:
        theirs.close()
    return process, ours, uid
