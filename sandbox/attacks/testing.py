"""Attacks on the other kinds of tests: unit-test files, checkers, and the work directory that some programs have."""

from sandbox.attacks.attack import Attack, Family

_UNIT_TESTS = (
    {
        "unit_tests": "import unittest\nfrom solution import f\n"
        "class TestF(unittest.TestCase):\n"
        "    def test_one(self): self.assertEqual(f(1), '@token@')\n"
        "    def test_two(self): self.assertEqual(f(2), '@token@')\n"
        "def test_three(): assert f(3) == '@token@'\n"
    },
)
_CHECKED = ({"stdin": "", "stdout": "@token@"},)
_CHECKER = {"checker": "def check(input, expected, got):\n    return sorted(got.split()) == sorted(expected.split())"}


def _units(name: str, success: str, program: str, shown: bool = False) -> Attack:
    guards = ("comparison in the host",) if shown else ()
    return Attack(
        name, success, "comparison in the host", program, _UNIT_TESTS, entry_point=None, succeeds_without=guards
    )


def _work(name: str, success: str, body: str) -> Attack:
    """Nothing it answers is right; what counts is what is left of its work directory."""
    program = f"import os\ndef attack():\n{body}\n    return 'done'"
    return Attack(name, success, "end of the group", program, tests=({"expected": "@token@"},), spec={"files": {}})


FAMILY = Family(
    "testing",
    "get unit tests to vanish, talk a checker round, or leave a trap in the work directory",
    (
        _units("tests that vanish", "tests that nobody heard of count as passed",
               "import os\ndef f(n): os._exit(0)", shown=True),
        _units("tests that vanish while loading", "no tests is no failure", "import sys\nsys.exit(0)", shown=True),
        _units("tests that are removed", "the test file has none left",
               "import unittest\nunittest.TestCase.run = lambda *a, **k: None\n"
               "unittest.main = unittest.TestLoader.loadTestsFromModule = lambda *a, **k: unittest.TestSuite()\n"
               "def f(n): return 0", shown=True),
        _units("tests that are skipped", "skipped counts as passed",
               "import unittest\ndef f(n): raise unittest.SkipTest('not today')", shown=True),
        _units("tests whose failure is expected", "an expected failure counts as passed",
               "import unittest\nclass _ShouldStop(Exception): pass\n_ShouldStop.__module__ = 'unittest.case'\n"
               "def f(n): raise _ShouldStop"),
        _units("assertions that agree", "assertEqual is another function",
               "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\ndef f(n): return 0", shown=True),
        _units("an object equal to everything", "the comparison asks the program",
               "class Anything:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
               "    __hash__ = object.__hash__\ndef f(n): return Anything()", shown=True),
        _units("an object that is a reference", "the tests' process takes it for one of its own",
               "import os\ndef f(n):\n    os.write(4, b'{\"value\": \"{\\\\\"object\\\\\": 0}\"}\\n')\n    return f"),
        _units("a module in place of the tests", "the test file imports the program's code",
               "import sys\nsys.modules['tests'] = sys.modules['unittest'] = sys.modules[__name__]\n"
               "TestCase = object\ndef f(n): return 0"),
        _units("claiming the outcomes", "the channel of outcomes is open to the program",
               "import os\nlines = b''.join(b'{\"test\": \"%s\", \"outcome\": \"passed\"}\\n' % name for name in\n"
               "    (b'TestF.test_one', b'TestF.test_two', b'test_three'))\n"
               "for number in range(1, 64):\n    try: os.write(number, lines)\n    except OSError: pass\n"
               "def f(n): return 0"),
        Attack("names that hide the tests' own", "the test file calls the program's len and isinstance",
               "comparison in the host",
               "def isinstance(value, kind): return True\ndef len(value): return 32\ndef same(*a): return True\n"
               "class math: isclose = same\ndef f(n): return 0",
               tests=({"unit_tests": "import math\ndef same(a, b): return a == b\nfrom solution import *\n"
                       "def test_kind(): assert isinstance(f(1), str)\ndef test_length(): assert len(f(1)) == 32\n"
                       "def test_same(): assert same(f(1), 1)\ndef test_close(): assert math.isclose(f(1), 1)\n"},),
               entry_point=None),
        Attack("output that looks like a verdict", "the checker's verdict comes from the output",
               "comparison in the host", "print('{\"outcome\": \"passed\"}\\nTrue\\npassed')",
               tests=_CHECKED, spec=_CHECKER, entry_point=None),
        Attack("output that breaks the checker", "a checker that fails counts as agreement",
               "comparison in the host", "print('\\x00\\ud800'.encode('utf-8', 'surrogatepass') or '' , '9' * 5000)",
               tests=_CHECKED, spec={"checker": "def check(input, expected, got):\n    return int(got) == 0"},
               entry_point=None),
        Attack("output that a checker would run", "the checker evaluates it, outside",
               "comparison in the host", "print(\"__import__('os').mkdir('@outdoors@/from-a-checker')\")",
               tests=_CHECKED, spec={"checker": "def check(input, expected, got):\n    return eval(got) == expected"},
               entry_point=None),
        _work("folders without end", "the janitor fails on the path's length",
              "    for _ in range(25):\n        os.mkdir('d')\n        os.chdir('d')"),
        _work("folders deeper than anybody looks", "the janitor runs out of stack or descriptors",
              "    for _ in range(500):\n        os.mkdir('d')\n        os.chdir('d')"),
        _work("a folder that may not be opened", "the janitor cannot look into it",
              "    os.mkdir('closed')\n    open('closed/file', 'w').close()\n    os.chmod('closed', 0)"),
        _work("links for whoever cleans up", "the janitor follows one, and removes or opens what it names",
              "    os.symlink('@outdoors@', 'link')\n    os.symlink('@outdoors@/kept', 'file')\n"
              "    os.symlink('.', 'self')"),
        _work("names that are no text", "the janitor fails on a name",
              "    for name in (b'\\xff\\xfe', b'-rf', b'a\\nb', b' ', b'\\x1b[2J', 'x' * 255):\n"
              "        open(name, 'w').close()"),
        _work("a hard link to its own library", "somebody may change or remove it",
              "    try:\n        os.link(os.__file__, 'library')\n        open('library', 'a').close()\n"
              "    except OSError: pass"),
        _work("a pipe where a file is expected", "whoever opens it hangs",
              "    try:\n        os.mkfifo('pipe')\n    except OSError: pass"),
    ),
)  # fmt: skip
