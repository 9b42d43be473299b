"""Verdicts: what each way of answering gives, and that no way of cheating gives `passed`."""

import textwrap

import pytest

from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox, run_tests

LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64)
CALL = parse_spec({"entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}, {"args": [2, 2], "expected": 4}]})
CHECK = parse_spec(
    {"entry_point": "add", "tests": [{"source": "def check(candidate):\n    assert candidate(1, 2) == 3"}]}
)
STDIO = parse_spec({"tests": [{"stdin": "1 2\n", "stdout": "3\n"}]})


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def verdicts(sandbox, code, spec):
    return sandbox.run_tests(textwrap.dedent(code), spec).verdicts


def test_each_call_has_its_own_verdict(sandbox):
    assert verdicts(sandbox, "def add(a, b): return 3", CALL) == ("passed", "wrong")
    assert verdicts(sandbox, "def add(a, b): return a + b if a == 1 else 1 / 0", CALL) == ("passed", "runtime_error")


def test_what_ends_the_process_is_the_verdict_of_the_calls_left(sandbox):
    assert verdicts(sandbox, "import os\ndef add(a, b):\n    return 3 if a == 1 else os._exit(0)", CALL) == (
        "passed",
        "runtime_error",
    )
    assert verdicts(sandbox, "def add(a, b):\n    return 'x' * 10**10", CALL) == ("memory", "memory")


@pytest.mark.parametrize("code", ["x =", "\0", "(" * 10_000, "x = '\ud800'", "def add(a, b):\nreturn 3"])
def test_a_program_that_is_no_python_is_a_compile_error(sandbox, code):
    assert sandbox.run_tests(code, CALL).verdicts == ("compile_error", "compile_error")
    assert sandbox.run_tests(code, CHECK).verdicts == sandbox.run_tests(code, STDIO).verdicts == ("compile_error",)


@pytest.mark.parametrize("code", ["import nothing_like_it", "1 / 0", "", "def other(): pass", "add = 3"])
def test_a_program_that_does_not_load_or_lacks_the_function_is_an_error(sandbox, code):
    assert verdicts(sandbox, code, CALL) == ("runtime_error", "runtime_error")
    assert verdicts(sandbox, code, CHECK) == ("runtime_error",)


def test_assertions_run_against_the_program_across_the_pipe(sandbox):
    assert verdicts(sandbox, "def add(a, b): return a + b", CHECK) == ("passed",)
    assert verdicts(sandbox, "def add(a, b): return a - b", CHECK) == ("wrong",)
    assert verdicts(sandbox, "def add(a, b): return 1 / 0", CHECK) == ("runtime_error",)
    assert verdicts(sandbox, "def add(a, b): return 'x' * 10**10", CHECK) == ("memory",)
    assert verdicts(sandbox, "def add(a, b):\n    print('x' * 10**6)\n    return 3", CHECK) == ("output_limit",)


def test_a_program_that_hangs_under_assertions_times_out():
    assert run_tests("def add(a, b):\n    while True: pass", CHECK, Limits(wall_s=1)).verdicts == ("timeout",)


def test_assertions_may_use_the_context_and_the_functions_own_name(sandbox):
    spec = parse_spec(
        {
            "entry_point": "root",
            "context": "def poly(x):\n    return x - 2\n",
            "tests": [
                {"source": "def check(candidate):\n    assert abs(poly(candidate())) < 1e-6"},
                {"source": "assert root() == 2"},
            ],
        }
    )
    assert verdicts(sandbox, "def root(): return 2.0", spec) == ("passed", "passed")


def test_assertions_may_expect_an_exception(sandbox):
    source = "try:\n    add(1, 'x')\nexcept TypeError:\n    pass\nelse:\n    assert False"
    spec = parse_spec({"entry_point": "add", "tests": [{"source": source}]})
    assert verdicts(sandbox, "def add(a, b): return a + b", spec) == ("passed",)
    assert verdicts(sandbox, "def add(a, b): return 3", spec) == ("wrong",)


def test_a_program_reads_its_input_and_is_judged_by_what_it_prints(sandbox):
    assert verdicts(sandbox, "print(sum(map(int, input().split())))", STDIO) == ("passed",)
    assert verdicts(sandbox, "print(4)", STDIO) == ("wrong",)
    assert verdicts(sandbox, "print(3); 1 / 0", STDIO) == ("runtime_error",)
    assert verdicts(sandbox, "print(3)\nraise SystemExit(2)", STDIO) == ("runtime_error",)
    assert verdicts(sandbox, "print(3)\nraise SystemExit", STDIO) == ("passed",)
    assert verdicts(sandbox, "x = 'x' * 10**10", STDIO) == ("memory",)
    assert verdicts(sandbox, "if __name__ == '__main__': print('3  \\n\\n')", STDIO) == ("passed",)


def test_a_large_input_reaches_a_program_that_reads_it_late(sandbox):
    spec = parse_spec({"tests": [{"stdin": "7\n" * 200_000, "stdout": "1400000"}]})
    code = "import sys, time\ntime.sleep(0.2)\nprint(sum(map(int, sys.stdin)))"
    assert verdicts(sandbox, code, spec) == ("passed",)
    assert verdicts(sandbox, "print(1400000)", spec) == ("passed",)


FORGERIES = {
    "ends the process with success": "import os\nos._exit(0)",
    "leaves by sys.exit": "import sys\nsys.exit(0)",
    "leaves at the call": "import sys\ndef add(a, b): sys.exit(0)",
    "leaves at the call with success": "import os\ndef add(a, b): os._exit(0)",
    "prints markers": """
        def add(a, b):
            print('{"outcome": "passed"}\\n{"value": 3}\\npassed OK 1 passed')
    """,
    "writes a verdict into every descriptor": """
        import os
        for number in range(3, 64):
            try:
                os.write(number, b'{"confined": true}\\n{"outcome": "passed"}\\n' * 5)
            except OSError:
                pass
        def add(a, b): return None
    """,
    "writes garbage into every descriptor": """
        import os
        for number in range(64):
            try:
                os.write(number, b'\\xff\\x00' * 100 + b'\\n')
            except OSError:
                pass
        def add(a, b): return 3
    """,
    "returns something equal to all": """
        class Equal:
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def add(a, b): return Equal()
    """,
    "returns an int equal to all": """
        class Equal(int):
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        def add(a, b): return Equal(7)
    """,
    "patches json and the harness": """
        import json, sys
        json.dumps = lambda *a, **k: '{"value": 3, "outcome": "passed"}'
        for name, module in list(sys.modules.items()):
            if name.startswith('sandbox'):
                for key in list(vars(module)):
                    if callable(vars(module)[key]):
                        setattr(module, key, lambda *a, **k: {"outcome": "passed"})
        def add(a, b): return None
    """,
    "patches builtins": """
        import builtins
        builtins.AssertionError = Exception
        builtins.isinstance = lambda *a: True
        builtins.len = lambda *a: 0
        def add(a, b): return None
    """,
    "registers an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return None",
    "raises the error that tests raise": "def add(a, b): raise AssertionError('3')",
    "raises something that is no Exception": "def add(a, b): raise KeyboardInterrupt",
    "raises an exception with an awkward constructor": """
        def add(a, b): raise UnicodeDecodeError('utf-8', b'', 0, 1, 'x')
    """,
    "raises an exception that cannot be printed": """
        class Awkward(Exception):
            def __str__(self): raise ValueError
        def add(a, b): raise Awkward
    """,
    "walks up the frames and changes what it finds": """
        import sys
        def add(a, b):
            frame = sys._getframe()
            while frame:
                for name, value in list(frame.f_locals.items()):
                    if isinstance(value, dict):
                        value['outcome'] = 'passed'
                        value['expected'] = None
                frame = frame.f_back
            return None
    """,
    "redefines the test": "def check(candidate): pass\ndef add(a, b): return None",
    "sends a pickle": """
        import pickle, os
        class Evil:
            def __reduce__(self): return (os._exit, (0,))
        def add(a, b): return pickle.dumps(Evil())
    """,
    "nests its value without end": """
        def add(a, b):
            value = []
            for _ in range(100000):
                value = [value]
            return value
    """,
    "returns itself inside itself": "def add(a, b):\n    value = []\n    value.append(value)\n    return value",
    "closes every descriptor": "import os\nos.closerange(0, 64)\ndef add(a, b): return 3",
    "closes its answers at the call": "import os\ndef add(a, b):\n    os.close(4)\n    return 3",
    "reads the questions away": """
        import os
        def add(a, b):
            os.set_blocking(3, False)
            os.read(3, 9999)
            return 9
    """,
    "answers with the wrong thing twice": """
        import os
        def add(a, b):
            os.write(4, b'{"value": 99}\\n{"value": 99}\\n')
            return 99
    """,
    "swallows the exit": """
        import os, sys
        os._exit = sys.exit = lambda *a: None
        def add(a, b): return None
    """,
}


@pytest.mark.parametrize("how", FORGERIES)
def test_no_forgery_passes(how):
    with Sandbox(Limits(wall_s=4, memory_mb=256)) as fresh:
        for spec in (CALL, CHECK, STDIO):
            assert "passed" not in verdicts(fresh, FORGERIES[how], spec), how
        # And the next program is judged as if nothing had been.
        assert verdicts(fresh, "def add(a, b): return a + b", CALL) == ("passed", "passed")


def test_forging_the_answer_pipe_gains_only_what_computing_would(sandbox):
    """Whoever knows the answer may write it by hand; it is compared all the same."""
    code = """
        import os, json
        os.write(4, b'{"value": "null"}\\n' + b'{"value": "3"}\\n' + b'{"value": "5"}\\n')
        def add(a, b): return 0
    """
    assert verdicts(sandbox, code, CALL)[1] != "passed"


def test_values_of_all_plain_kinds_come_back_and_are_compared(sandbox):
    cases = [
        ("(1, 2)", [1, 2]),
        ("{'a': [1.5, None]}", {"a": [1.5, None]}),
        ("0.1 + 0.2", 0.3),
        ("4.0", 4),
        ("'é\\n'", "é\n"),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}),
        ("10**30", 10**30),
        ("True", True),
    ]
    for source, expected in cases:
        spec = parse_spec({"entry_point": "f", "tests": [{"expected": expected}]})
        assert verdicts(sandbox, f"def f(): return {source}", spec) == ("passed",), source


def test_what_is_not_equal_is_wrong(sandbox):
    cases = [("1", True), ("True", 1), ("'1'", 1), ("None", 0), ("{1, 2}", [1, 2]), ("object()", 1)]
    cases += [("10**400", 0.5), ("float('nan')", 0.0), ("lambda: 1", 1), ("iter([1])", [1]), ("[1, 2, 3]", [1, 2])]
    for source, expected in cases:
        spec = parse_spec({"entry_point": "f", "tests": [{"expected": expected}]})
        assert verdicts(sandbox, f"def f(): return {source}", spec) == ("wrong",), source


def test_the_same_program_does_the_same_every_time():
    spec = parse_spec({"tests": [{"stdin": "", "stdout": "?"}]})
    code = "import random\nprint(hash('a'), list({'x', 'y', 'z', 'w'}), random.random())"
    first, second = (run_tests(code, spec, LIMITS).stdout for _ in range(2))
    assert first == second != ""


def test_output_heads_are_text_whatever_was_written(sandbox):
    result = sandbox.run_tests("import os\nos.write(1, b'\\xff\\xfeabc')\nos.write(2, b'oops')", STDIO)
    assert result.stdout.endswith("abc")
    assert result.stderr == "oops"
    result.stdout.encode("utf-8")


@pytest.mark.parametrize("test", ["calls", "assertions"])
def test_too_much_output_counts_however_quickly_the_answer_follows(sandbox, test):
    # The kill races with the answer: the verdict must not depend on which of them wins.
    calls = parse_spec({"tests": [{"args": [1, 2], "expected": 3}], "entry_point": "add"})
    code = "def add(a, b):\n    print('x' * 200_000)\n    return 3"
    assert {verdicts(sandbox, code, CHECK if test == "assertions" else calls) for _ in range(60)} == {("output_limit",)}
