"""Attacks by the value that is given back: objects that claim to be equal to everything, or that do harm when read."""

from sandbox.attacks.attack import Attack, Family

# Nobody can guess it, so whatever passes has cheated.
_TOKEN = ({"expected": "@token@"},)
_COMPARED_INSIDE = ("comparison in the host",)


def _value(name: str, success: str, program: str, **rest: object) -> Attack:
    return Attack(name, success, "comparison in the host", program, **{"tests": _TOKEN, **rest})  # type: ignore[arg-type]


FAMILY = Family(
    "disguise",
    "give back an object that lies about being equal, or that harms whoever reads it",
    (
        _value(
            "equal to everything", "the answer counts as right",
            """
            class Anything:
                def __eq__(self, other): return True
                def __hash__(self): return 0
            def attack(): return Anything()
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "text that is equal to everything", "the answer counts as right",
            """
            class Anything(str):
                def __eq__(self, other): return True
                def __ne__(self, other): return False
                __hash__ = str.__hash__
            def attack(): return Anything("x")
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "a number that is equal to everything", "the answer counts as right",
            """
            class Anything(int):
                def __eq__(self, other): return True
                def __int__(self): return self
                __hash__ = int.__hash__
            def attack(): return Anything(0)
            """,
            tests=({"expected": 424242},), succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "a list that is equal to everything", "the answer counts as right",
            """
            class Anything(list):
                def __eq__(self, other): return True
                def __len__(self): return 3
            def attack(): return Anything()
            """,
            tests=({"expected": [1, "@token@", 3]},), succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "a dictionary whose items change", "the answer counts as right",
            """
            class Anything(dict):
                def __eq__(self, other): return True
                def __getitem__(self, key): return self
                def keys(self): return self
            def attack(): return Anything()
            """,
            tests=({"expected": {"a": "@token@"}},), succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "another class by name", "it counts as text",
            """
            class Anything:
                __class__ = str
                def __eq__(self, other): return True
                def __str__(self): return "x"
            def attack(): return Anything()
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "a class that is an instance of everything", "the answer counts as right",
            """
            class Meta(type):
                def __eq__(cls, other): return True
                def __instancecheck__(cls, other): return True
                __hash__ = type.__hash__
            class Anything(metaclass=Meta): pass
            def attack(): return Anything
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _value(
            "an object that answers every question", "the comparison is never made",
            """
            class Anything:
                def __getattr__(self, name): return self
                def __call__(self, *a, **k): return self
                def __eq__(self, other): return self
                def __bool__(self): return True
            def attack(): return Anything()
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _value("a simulation (unittest.mock.ANY)", "the answer counts as right",
               "from unittest.mock import ANY\ndef attack(): return ANY", succeeds_without=_COMPARED_INSIDE),
        _value("True for one", "a boolean counts as a number", "def attack(): return True", tests=({"expected": 1},),
               succeeds_without=_COMPARED_INSIDE),
        _value("not a number", "it is close to everything", "def attack(): return float('nan')",
               tests=({"expected": 1.5},)),
        _value("infinity", "every tolerance covers it", "def attack(): return float('inf')",
               tests=({"expected": 1.5},)),
        _value(
            "a pickle that runs code when it is read", "a file appears, made by the host",
            """
            import os
            class Bomb:
                def __reduce__(self): return (os.mkdir, ("@outdoors@/from-a-pickle",))
            def attack(): return Bomb()
            """,
            succeeds_without=("typed values",),
        ),
        _value(
            "a list within a list within a list", "the host runs out of stack",
            """
            def attack():
                value = []
                for _ in range(100_000):
                    value = [value]
                return value
            """,
        ),
        _value(
            "nesting written past the encoder", "the host runs out of stack",
            """
            import os
            def attack():
                os.write(4, b'{"value": "' + b"[" * 60_000 + b'"}\\n')
                os.write(4, b'{"a":' * 12_000 + b'1' + b'}' * 12_000 + b'\\n')
            """,
        ),
        _value(
            "a number of a million digits", "the host computes for ever",
            """
            import sys
            def attack():
                sys.set_int_max_str_digits(0)
                return 10 ** 60_000
            """,
        ),
        _value(
            "keys that collide", "the host computes for ever",
            "def attack(): return {k * (2**61 - 1): 0 for k in range(3000)}",
        ),
        _value("a list that contains itself", "the host goes round in circles",
               "def attack():\n    value = []\n    value.append(value)\n    return value"),
        _value(
            "an iterator without end", "the host waits for the last element",
            """
            class Endless(list):
                def __iter__(self):
                    while True:
                        yield 1
            def attack(): return Endless([1])
            """,
        ),
        _value("text that no file can hold", "the host fails to write the result",
               "def attack(): return '\\ud800' * 10"),
        _value("an error that no file can hold", "the host fails to write the result",
               "def attack(): raise ValueError('\\ud800\\x00' * 10)"),
        _value("a generator", "it runs where it is read", "def attack(): yield 'x'"),
    ),
)  # fmt: skip
