"""Attacks on the verdict: ending early, printing what the runner prints, writing to its channel, claiming success."""

from sandbox.attacks.attack import ONE_SECOND, Attack, Family

_TOKEN = ({"expected": "@token@"},)
_CHECK = ({"source": "def check(candidate):\n    assert candidate(1) == '@token@'"},)
_STDIO = ({"stdin": "1\n", "stdout": "@token@\n"},)
_COMPARED_INSIDE = ("comparison in the host",)


def _forgery(name: str, success: str, program: str, **rest: object) -> Attack:
    return Attack(name, success, "comparison in the host", program, **{"tests": _TOKEN, **rest})  # type: ignore[arg-type]


FAMILY = Family(
    "forging",
    "get the verdict without the answer: end early, print or send what counts, claim success",
    (
        _forgery("exit status 0 (os._exit)", "an early end counts as success",
                 "import os\ndef attack(): os._exit(0)", succeeds_without=_COMPARED_INSIDE),
        _forgery("exit status 0 (sys.exit)", "an early end counts as success",
                 "import sys\ndef attack(): sys.exit(0)", succeeds_without=_COMPARED_INSIDE),
        _forgery("exit status 0 while loading", "an early end counts as success",
                 "raise SystemExit(0)", succeeds_without=_COMPARED_INSIDE),
        _forgery("an early end under assertions", "assertions that were not reached count as passed",
                 "import os\ndef attack(n=0): os._exit(0)", tests=_CHECK),
        _forgery("an early end of a script", "no output counts as the right output",
                 "import os\nos._exit(0)", tests=_STDIO, entry_point=None),
        _forgery("killing itself", "an end by a signal counts as success",
                 "import os, signal\ndef attack(): os.kill(os.getpid(), signal.SIGKILL)"),
        _forgery(
            "the last line of a test run", "what is printed counts",
            """
            import os
            print("all tests passed\\nOK\\n1 passed in 0.01s\\nRan 1 test in 0.001s", flush=True)
            def attack(): os._exit(1)
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _forgery(
            "the runner's own messages, printed", "what is printed counts",
            """
            print('{"confined": true}\\n{"value": null}\\n{"outcome": "passed"}\\n{"verdict": "passed"}', flush=True)
            def attack(n=0): return 0
            """,
            tests=(*_TOKEN, *_CHECK),
        ),
        _forgery(
            "the runner's own messages, on every descriptor", "the channel is open to the program",
            """
            import os
            lines = b'{"value": null}\\n{"outcome": "passed"}\\n{"verdict": "passed"}\\n{"passed": 9, "failed": 0}\\n'
            for number in range(64):
                try:
                    os.write(number, lines * 3)
                except OSError:
                    pass
            def attack(n=0): return 0
            """,
            tests=(*_TOKEN, *_CHECK),
        ),
        _forgery(
            "answers before the questions", "the second answer is taken for one to another question",
            """
            import os
            def attack(n=0):
                os.write(4, b'{"value": "0"}\\n' * 50)
                return 0
            """,
            tests=({"args": [1], "expected": "@token@"}, {"args": [2], "expected": "@token@"}),
        ),
        _forgery(
            "closing the channel", "no answer counts as success",
            "import os\nos.closerange(3, 64)\ndef attack(n=0): return 0", tests=(*_TOKEN, *_CHECK),
        ),
        _forgery(
            "flooding the channel", "the host drowns",
            """
            import os
            def attack():
                for _ in range(200):
                    os.write(4, b"x" * 10_000)
            """,
        ),
        _forgery(
            "swapping channel and output", "printed text becomes the answer",
            """
            import os
            os.dup2(1, 9); os.dup2(4, 1); os.dup2(9, 4)
            def attack(n=0):
                print('{"outcome": "passed"}', flush=True)
            """,
            tests=(*_TOKEN, *_CHECK), limits=ONE_SECOND,
        ),
        _forgery(
            "reading the questions itself", "it sees what it is compared with",
            """
            import os
            def attack(n=0):
                os.set_blocking(3, False)
                try:
                    return os.read(3, 65536).decode()
                except BlockingIOError:
                    return "nothing"
            """,
            tests=({"args": [1], "expected": "@token@"}, {"args": [2], "expected": "@token@"}),
        ),
        _forgery("an exception that says passed", "its name or text counts",
                 "class passed(Exception): pass\ndef attack(n=0): raise passed('passed')", tests=(*_TOKEN, *_CHECK)),
        _forgery(
            "an exception whose text is a message", "its text counts",
            """
            class Claim(Exception):
                def __str__(self): return '"}\\n{"outcome": "passed"}\\n'
            Claim.__name__ = '"}\\n{"outcome": "passed"}'
            def attack(n=0): raise Claim()
            """,
            tests=(*_TOKEN, *_CHECK),
        ),
        _forgery(
            "an exception that fails when it is shown", "the runner fails instead of the program",
            """
            class Claim(BaseException):
                def __str__(self): raise SystemExit(0)
                __repr__ = __str__
            def attack(n=0): raise Claim()
            """,
            tests=(*_TOKEN, *_CHECK), succeeds_without=(),
        ),
        _forgery("an exception that ends a loop of tests", "the loop over the cases ends without one being checked",
                 "def attack(n): raise StopIteration",
                 tests=({"source": "assert all(map(lambda n: attack(n) == '@token@', range(9)))"},)),
        _forgery("an exception that ends a generator", "the loop over the cases ends without one being checked",
                 "def attack(n): raise GeneratorExit",
                 tests=({"source": "assert all(attack(n) == '@token@' for n in range(9))"},)),
        _forgery("an interruption", "the runner believes that a person stopped it",
                 "def attack(n=0): raise KeyboardInterrupt", tests=(*_TOKEN, *_CHECK)),
        _forgery(
            "a finaliser that speaks after the answer", "the last word counts",
            """
            import os, weakref
            class Late:
                def __del__(self): os.write(4, b'{"value": null}\\n{"outcome": "passed"}\\n')
            late = Late()
            weakref.finalize(attack := (lambda n=0: 0), os.write, 4, b'{"outcome": "passed"}\\n')
            """,
            tests=(*_TOKEN, *_CHECK),
        ),
        _forgery(
            "an exit handler that speaks after the answer", "the last word counts",
            """
            import atexit, os, sys
            atexit.register(os.write, 4, b'{"outcome": "passed"}\\n')
            atexit.register(os._exit, 0)
            def attack(n=0): sys.exit(1)
            """,
            tests=(*_TOKEN, *_CHECK), succeeds_without=_COMPARED_INSIDE,
        ),
        _forgery(
            "a late alarm", "the answer changes after it was given",
            """
            import os, signal
            signal.signal(signal.SIGALRM, lambda *a: os.write(4, b'{"outcome": "passed"}\\n'))
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            def attack(n=0):
                end = __import__("time").monotonic() + 0.05
                while __import__("time").monotonic() < end: pass
                return 0
            """,
            tests=(*_TOKEN, *_CHECK),
        ),
        _forgery("echoing the input", "the input holds the expected output",
                 "import sys\nsys.stdout.write(sys.stdin.read())", tests=_STDIO, entry_point=None),
        _forgery("right output and a failure", "output counts although the program failed",
                 "print('known')\nraise SystemExit(3)", tests=({"stdin": "", "stdout": "known\n"},), entry_point=None),
    ),
)  # fmt: skip
