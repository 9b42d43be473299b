"""Attacks that multiply: forks, threads, other programs, and whatever tries to outlive its verdict."""

from sandbox.attacks.attack import ONE_SECOND, Attack, Family, system_call

_FORK = ("system-call filter", "resource limits")

FAMILY = Family(
    "processes",
    "have more than one process or thread, run another program, or stay after the end",
    (
        Attack(
            "a fork", "a second process exists", "system-call filter",
            """
            import os
            def attack():
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a fork bomb", "processes without number", "system-call filter",
            """
            import os, time
            def attack():
                for _ in range(5):
                    if os.fork() == 0:
                        os.fork()
                        time.sleep(0.2)
                        os._exit(0)
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a fork bomb that catches its failures", "processes without number", "system-call filter",
            """
            import os
            def attack():
                children = 0
                for _ in range(100):
                    try:
                        child = os.fork()
                    except OSError as error:
                        refused = error
                        continue
                    if child == 0:
                        os._exit(0)
                    children += 1
                if children == 0:
                    raise refused
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a fork past Python", "a second process exists", "system-call filter",
            """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            def attack():
                child = libc.fork()
                if child == 0:
                    os._exit(0)
                if child < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a double fork with a session of its own", "a process outlives the verdict", "system-call filter",
            """
            import os, time
            def attack():
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        time.sleep(5)
                    os._exit(0)
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a thread", "a second thread runs", "system-call filter",
            """
            import threading
            def attack():
                try:
                    threading.Thread(target=print).start()
                except RuntimeError as error:
                    raise PermissionError(1, "Operation not permitted") from error
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "threads without number", "twenty threads run", "system-call filter",
            """
            import _thread, time
            def attack():
                try:
                    for _ in range(20):
                        _thread.start_new_thread(time.sleep, (0.2,))
                except RuntimeError as error:
                    raise PermissionError(1, "Operation not permitted") from error
                return "breached"
            """,
            succeeds_without=_FORK,
        ),
        Attack(
            "a pool of processes", "others work for it", "system-call filter",
            """
            import multiprocessing
            def attack():
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    pool.map(abs, [1])
                return "breached"
            """,
        ),
        Attack(
            "a program in its place", "another program runs", "system-call filter",
            """
            import os
            def attack():
                os.execv("/bin/true", ["true"])
            """,
        ),
        Attack(
            "a command", "another program runs", "system-call filter",
            """
            import subprocess
            def attack():
                subprocess.run(["/bin/true"], check=True)
                return "breached"
            """,
            succeeds_without=("system-call filter", "Landlock", "resource limits"),
        ),
        Attack(
            "a shell", "a shell runs", "system-call filter",
            """
            import os
            def attack():
                if os.system("exit 0") != 0:
                    raise PermissionError(1, "Operation not permitted")
                return "breached"
            """,
        ),
        system_call("clone3", "a newer call", 435, 435, "None, 0", succeeds_without=("system-call filter",)),
        system_call("running an open file (execveat)", "no path to forbid", 322, 281, "-1, b'', None, None, 0x1000"),
        system_call("a session of its own (setsid)", "a signal to the group misses it", 112, 157),
        system_call("a group of its own (setpgid)", "a signal to the group misses it", 109, 154, "0, 0"),
        Attack(
            "staying behind a closed output", "a process outlives the verdict", "clock in the host",
            """
            import os, time
            def attack():
                for number in range(64):
                    try:
                        os.close(number)
                    except OSError:
                        pass
                time.sleep(3)
            """,
            limits=ONE_SECOND,
        ),
        Attack(
            "work at the interpreter's exit", "it goes on after the verdict", "comparison in the host",
            """
            import atexit, time
            atexit.register(time.sleep, 3)
            def attack():
                atexit.register(time.sleep, 3)
                return "something else"
            """,
        ),
    ),
)  # fmt: skip
