"""Comparisons of output, checkers, unit-test files, and what details say."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.compare import equal_texts
from sandbox.limits import Limits
from sandbox.spec import SpecError, UnitTests, parse_spec
from sandbox.unit_names import names_of_tests
from sandbox.verdicts import Sandbox

LIMITS = Limits(wall_s=10, memory_mb=256, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as opened:
        yield opened


def run(sandbox, code, **spec):
    return sandbox.run_tests(textwrap.dedent(code), parse_spec(spec))


@pytest.mark.parametrize(
    ("rule", "got", "expected", "equal"),
    [
        ("exact", "3\n", "3\n", True),
        ("exact", "3", "3\n", False),
        ("lines", "3  \n4\n\n", "3\n4", True),
        ("lines", "3 4", "3\n4", False),
        ("lines", " 3", "3", False),
        ("whitespace", " 3\n\n4 ", "3 4", True),
        ("whitespace", "34", "3 4", False),
        ("whitespace", "", "", True),
        ("float", "0.30000004 yes", "0.3 yes", True),
        ("float", "1000000.5", "1e6", True),
        ("float", "0.31", "0.3", False),
        ("float", "0.3 no", "0.3 yes", False),
        ("float", "0.3 1", "0.3", False),
        ("float", "nan", "0.3", False),
        ("float", "inf", "1e300", False),
        ("float", "1_0", "10", False),
        ("float", "nan", "nan", True),
        ("float", "0x10", "16", False),
        ("float", "9" * 5000, "1" + "0" * 4999, False),
    ],
)
def test_output_is_compared_by_the_rule(rule, got, expected, equal):
    assert equal_texts(got, expected, rule, 1e-6) is equal


@given(st.text(), st.floats(0, 1))
def test_every_text_equals_itself_by_every_rule(text, tolerance):
    for rule in ("exact", "lines", "whitespace", "float"):
        assert equal_texts(text, text, rule, tolerance)


def test_the_spec_chooses_the_rule(sandbox):
    tests = [{"stdin": "", "stdout": "0.5\n1"}]
    assert run(sandbox, "print(0.5, 1)", tests=tests).verdicts == ("passed",)
    assert run(sandbox, "print(0.5, 1)", tests=tests, compare="lines").verdicts == ("wrong",)
    assert run(sandbox, "print('0.5\\n1')", tests=tests, compare="exact").verdicts == ("wrong",)
    assert run(sandbox, "print('0.5\\n1', end='')", tests=tests, compare="exact").verdicts == ("passed",)
    assert run(sandbox, "print(0.499, 1.001)", tests=tests, compare="float", tolerance=0.01).verdicts == ("passed",)
    assert run(sandbox, "print(0.499, 1.001)", tests=tests, compare="float").verdicts == ("wrong",)


CHECKER = """
def check(input, expected, got):
    n, (a, b) = int(input), map(int, got.split())
    assert a > 1 and b > 1, "trivial"
    return a * b == n
"""


def test_a_checker_decides_where_many_answers_are_right(sandbox):
    spec = {"tests": [{"stdin": "35\n", "stdout": "5 7"}], "checker": CHECKER}
    assert run(sandbox, "print(7, 5)", **spec).verdicts == ("passed",)
    assert run(sandbox, "print(7, 4)", **spec).verdicts == ("wrong",)
    trivial = run(sandbox, "print(35, 1)", **spec)
    assert (trivial.verdicts, trivial.details) == (("wrong",), ("AssertionError: trivial",))
    assert run(sandbox, "1 / 0", **spec).verdicts == ("runtime_error",)


@pytest.mark.parametrize("output", ["", "a b", "1 2 3", "'9' * 5000 + ' 2'", "\ud800"])
def test_what_a_checker_cannot_read_is_wrong_and_not_our_fault(sandbox, output):
    result = run(sandbox, f"import os\nos.write(1, {output!r}.encode('utf-8', 'surrogatepass'))", tests=[
        {"stdin": "35\n", "stdout": "5 7"}], checker=CHECKER)  # fmt: skip
    assert result.verdicts == ("wrong",)
    assert result.details[0].startswith(("checker: ValueError", "AssertionError"))


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("while True: pass", "checker: timeout"),
        ("return 'x' * 10**10", "checker: MemoryError"),
        ("import os; os._exit(0)", "checker: runtime_error"),
        ("print('x' * 10**6); return True", "checker: output_limit"),
        ("open('/etc/passwd')", "checker: PermissionError"),
    ],
)
def test_a_checker_that_comes_to_grief_passes_nobody(body, detail):
    with Sandbox(Limits(wall_s=1, memory_mb=256)) as fresh:
        checker = f"def check(input, expected, got):\n    {body}"
        result = run(fresh, "print(1)", tests=[{"stdin": "", "stdout": ""}], checker=checker)
    assert result.verdicts == ("wrong",)
    assert result.details[0].startswith(detail)


UNITTEST = """
import unittest
import solution
from solution import Stack, Empty, double

class Base(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()

class TestStack(Base):
    def test_push_and_pop(self):
        self.stack.push(1)
        self.stack.push([2, (3, None)])
        self.assertEqual(len(self.stack), 2)
        self.assertEqual(self.stack.pop(), [2, (3, None)])
        self.assertEqual(list(self.stack), [1])
        self.assertEqual(self.stack.name, "stack")

    def test_empty(self):
        with self.assertRaises(Empty) as caught:
            self.stack.pop()
        self.assertIn("nothing", str(caught.exception))

    def test_parts(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertEqual(double(number), 2 * number)

def test_double():
    assert double(4) == 8
    assert solution.double("ab") == "abab"

class TestPlain:
    def setup_method(self):
        self.value = 3

    def test_method(self):
        assert double(self.value) == 6
"""
SOLUTION = """
class Empty(LookupError):
    pass
class Stack:
    name = "stack"
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise Empty("nothing there")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
def double(x): return x + x
"""
NAMES = ("TestStack.test_push_and_pop", "TestStack.test_empty", "TestStack.test_parts", "test_double",
         "TestPlain.test_method")  # fmt: skip


def units(sandbox, code, source=UNITTEST, **more):
    return run(sandbox, code, tests=[{"unit_tests": textwrap.dedent(source), **more}])


def test_the_tests_of_a_file_are_known_before_it_runs():
    spec = parse_spec({"tests": [{"unit_tests": UNITTEST, "count": 5}]})
    assert spec.tests == (UnitTests(UNITTEST, NAMES),)
    assert spec.size == 5


def test_each_unit_test_has_a_verdict(sandbox):
    assert units(sandbox, SOLUTION).verdicts == ("passed",) * 5, units(sandbox, SOLUTION)
    broken = units(sandbox, SOLUTION.replace("x + x", "x + 3"))
    assert broken.verdicts == ("passed", "passed", "wrong", "wrong", "passed")
    assert broken.details[3].startswith("AssertionError")
    raising = units(sandbox, SOLUTION.replace("return x + x", "return {}[x]"))
    assert raising.verdicts == ("passed", "passed", "runtime_error", "runtime_error", "runtime_error")
    assert raising.details[4] == "KeyError: 3 at line 13 in double"


def test_unit_tests_of_a_module_that_does_not_load_or_lacks_a_name_have_all_failed(sandbox):
    assert units(sandbox, "x =").verdicts == ("compile_error",) * 5
    assert units(sandbox, "1 / 0").details == ("ZeroDivisionError: division by zero at line 1 in <module>",) * 5
    missing = units(sandbox, "def double(x): return 2 * x")
    assert missing.verdicts == ("runtime_error",) * 5
    assert "cannot import name 'Stack'" in missing.details[0]
    assert units(sandbox, "while True: pass").verdicts == ("timeout",) * 5


TRICKS = {
    "ends at the first call": "def __init__(self): import os; os._exit(0)",
    "ends later": "def pop(self): import os; os._exit(0)",
    "claims to be equal": "def __eq__(self, other): return True\n    def pop(self): return Stack()",
    "answers for itself": 'def pop(self): import os; os.write(4, b\'{"value": "3"}\\n\' * 9)',
    "skips": "def pop(self): import unittest; raise unittest.SkipTest('no')",
    "fails as tests do": "def pop(self): raise AssertionError",
    "writes verdicts everywhere": "def pop(self):\n        import os\n        for n in range(3, 60):\n            try: "
    'os.write(n, b\'{"test": "TestStack.test_empty", "outcome": "passed"}\\n\')\n            except OSError: pass',
}


@pytest.mark.parametrize("how", TRICKS)
def test_no_trick_makes_tests_pass_or_vanish(how):
    code = SOLUTION.replace("class Stack:\n", f"class Stack:\n    {TRICKS[how]}\n    _ = 0\n", 1)
    kept, dropped = ("def pop(self):\n        if", "def _pop(self):\n        if")
    code = code.replace(kept, dropped).replace("def __init__(self): self.items", "def _init(self): self.items") if (
        "__init__" in TRICKS[how]
    ) else code.replace(kept, dropped)  # fmt: skip
    with Sandbox(LIMITS) as fresh:
        result = units(fresh, code)
        assert len(result.verdicts) == 5
        assert "passed" not in result.verdicts[:2], result
        assert units(fresh, SOLUTION).verdicts == ("passed",) * 5


def test_a_skipped_test_and_one_whose_class_cannot_be_set_up_have_not_passed(sandbox):
    source = """
        import unittest
        from solution import f
        class TestA(unittest.TestCase):
            @unittest.skip("later")
            def test_a(self): pass
            @unittest.expectedFailure
            def test_b(self): assert f() == 4
        class TestB(unittest.TestCase):
            @classmethod
            def setUpClass(cls): assert f() == 4
            def test_a(self): pass
        class TestC(unittest.TestCase):
            def test_a(self): assert f() == 3
    """
    assert units(sandbox, "def f(): return 3", source).verdicts == ("wrong", "passed", "wrong", "passed")


def test_objects_that_stay_with_the_program_decide_no_comparison(sandbox):
    code = """
        class Liar:
            def __eq__(self, other): return True
            def __bool__(self): return False
            def __hash__(self): return 0
            def __lt__(self, other): return True
            def __sub__(self, other): return 0
            def __round__(self, *digits): return 0
        def f(): return Liar()
    """
    source = """
        import unittest
        from solution import f
        class TestF(unittest.TestCase):
            def test_equal(self): self.assertEqual(f(), 3)
            def test_equal_the_other_way(self): self.assertEqual(3, f())
            def test_almost(self): self.assertAlmostEqual(f(), 3)
            def test_less(self): self.assertLess(f(), 3)
            def test_in(self): self.assertIn(f(), [3])
            def test_false(self): self.assertFalse(f())
            def test_none(self): self.assertIsNone(f())
            def test_kind(self): self.assertIsInstance(f(), int)
    """
    assert "passed" not in units(sandbox, code, source).verdicts


def test_names_follow_inheritance_and_the_order_of_the_file():
    source = """
import unittest
class Mixin:
    def test_mixed(self): pass
class TestBoth(Mixin, unittest.TestCase):
    def test_own(self): pass
    def helper(self): pass
class Helper:
    def test_not_collected(self): pass
def test_last(): pass
def tested_is_collected_too(): pass
def helper(): pass
"""
    assert names_of_tests(source) == [
        "TestBoth.test_own",
        "TestBoth.test_mixed",
        "test_last",
        "tested_is_collected_too",
    ]


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ({"unit_tests": "x ="}, "not Python"),
        ({"unit_tests": "x = 1"}, "no tests"),
        ({"unit_tests": "def test_x(tmp_path): pass"}, "test_x takes arguments; there are no fixtures"),
        ({"unit_tests": "def test_x(): pass", "count": 2}, "count is 2, but the file has 1 tests: test_x"),
        ({"unit_tests": "class TestA(TestA): pass"}, "no tests"),
        ({"unit_tests": "class TestA(B): pass\nclass B(TestA): pass"}, "unit_tests"),
        ({"unit_tests": 3}, "must be a string"),
    ],
)
def test_a_test_file_that_cannot_be_run_is_named(test, says):
    with pytest.raises(SpecError, match=says):
        parse_spec({"tests": [test]})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"compare": "same"}, "compare is 'same'; use one of whitespace, lines, exact, float"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"tolerance": True}, "tolerance is True"),
        ({"checker": "def check("}, "checker: "),
        ({"checker": "def chek(): pass"}, r"checker must define check\(input, expected, got\)"),
        ({"checker": 3}, "checker must be a string"),
    ],
)
def test_a_wrong_comparison_is_named(spec, says):
    with pytest.raises(SpecError, match=says):
        parse_spec({"tests": [{"stdin": "", "stdout": ""}], **spec})


def test_details_say_what_and_where(sandbox):
    code = "def g(x):\n    return x[3]\ndef f(x):\n    return g(x)"
    tests = [{"args": [[1]], "expected": 1}, {"args": ["abcd"], "expected": 1}, {"args": ["abcd"], "expected": "d"}]
    result = run(sandbox, code, entry_point="f", tests=tests)
    assert result.verdicts == ("runtime_error", "wrong", "passed")
    assert result.details == ("IndexError: list index out of range at line 2 in g", 'returned "d"', "")
    stdio = {"tests": [{"stdin": "", "stdout": "3"}]}
    assert run(sandbox, "def f():\n    raise KeyError('x')\nf()", **stdio).details == ("KeyError: 'x' at line 2 in f",)
    assert run(sandbox, "print(4)", **stdio).details == (r"wrote '4\n'",)
    assert run(sandbox, "raise SystemExit(7)", **stdio).details == ("exit status 7",)
    assert run(sandbox, "x =", **stdio).details[0].startswith("SyntaxError: invalid syntax")
    assert run(sandbox, "x = '" + "x" * 300_000 + "'", **stdio).details == ("a program of more than 256 KiB",)
    assert run(sandbox, "while True: print('x' * 1000)", **stdio).details == ("more than 64 KiB of output",)
    sandbox.limits = Limits(wall_s=0.5)
    assert run(sandbox, "while True: pass", **stdio).details == ("no end within 0.5 s",)
    sandbox.limits = LIMITS


def test_details_are_short_and_of_one_line_whatever_the_program_says(sandbox):
    code = "def f(): raise ValueError('a\\nb' * 100_000)"
    (detail,) = run(sandbox, code, entry_point="f", tests=[{"expected": 1}]).details
    assert "\n" not in detail
    assert len(detail) <= 300


def test_classes_of_a_program_find_their_module(sandbox):
    code = """
        from __future__ import annotations
        import pickle, sys
        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
        def f(): return (pickle.loads(pickle.dumps(Point(3))).x, __name__ in sys.modules)
        if __name__ == "__main__": print(f())
    """
    assert run(sandbox, code, entry_point="f", tests=[{"expected": [3, True]}]).verdicts == ("passed",)
    assert run(sandbox, code, tests=[{"stdin": "", "stdout": "(3, True)"}]).verdicts == ("passed",)


def test_preloaded_modules_are_there_and_their_neighbours_are_not():
    pytest.importorskip("numpy")
    spec = parse_spec({"entry_point": "f", "tests": [{"args": [2], "expected": 6}]})
    code = """
import numpy as np
import numpy.linalg
def f(n):
    drawn = np.random.default_rng(0).integers(0, 9, 5)
    return int((np.ones((3, n)) @ np.linalg.inv(np.eye(n))).sum()) + int(drawn.sum()) * 0
"""
    with Sandbox(LIMITS, preload=["numpy"]) as fresh:
        result = fresh.run_tests(code, spec)
        assert result.verdicts == ("passed",), result
        assert fresh.run_tests("import hypothesis\ndef f(n): return 6", spec).verdicts == ("runtime_error",)
        neighbour = f"def f(n): return len(open({pytest.__file__!r}).read()) and 6"
        assert "PermissionError" in fresh.run_tests(neighbour, spec).details[0]
    with Sandbox(LIMITS) as fresh:
        assert fresh.run_tests(code, spec).verdicts == ("runtime_error",)


def test_a_module_to_preload_that_is_not_installed_is_named():
    from sandbox.process import SandboxUnavailable

    with pytest.raises(SandboxUnavailable, match="preload: no module 'nothing_like_it' is installed"):
        Sandbox(preload=["nothing_like_it"])
