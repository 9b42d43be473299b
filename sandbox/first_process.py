"""What is asked of process 1 of a container: to bury orphans, and to pass on the signal that means the end.

Programs with processes of their own leave some behind when they are killed; without this their entries would pile up.
"""

import os
import signal


def leave_first_place() -> None:
    """Where this process is number 1, go on as its child; number 1 stays behind and ends when the child does."""
    if os.getpid() != 1:
        return
    child = os.fork()
    if child == 0:
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(child, received))
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(max(0, os.waitstatus_to_exitcode(status)) or int(os.WIFSIGNALED(status)))
