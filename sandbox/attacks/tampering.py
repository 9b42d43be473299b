"""Attacks on the interpreter they run in: its builtins, the runner's modules, frames, the garbage collector, memory."""

from sandbox.attacks.attack import ONE_SECOND, Attack, Family

_TOKEN = ({"expected": "@token@"},)
_CHECK = ({"source": "def check(candidate):\n    assert candidate() == '@token@'"},)
_COMPARED_INSIDE = ("comparison in the host",)


def _tampering(name: str, success: str, program: str, **rest: object) -> Attack:
    return Attack(name, success, "comparison in the host", program, **{"tests": (*_TOKEN, *_CHECK), **rest})  # type: ignore[arg-type]


FAMILY = Family(
    "tampering",
    "change the interpreter or the runner, or find the tests in it",
    (
        _tampering(
            "builtins that always agree", "comparing uses changed functions",
            """
            import builtins
            for name in ("isinstance", "issubclass", "callable", "hasattr", "bool", "all", "any"):
                setattr(builtins, name, lambda *a, **k: True)
            builtins.AssertionError = type("Never", (Exception,), {})
            def attack(): return 0
            """,
        ),
        _tampering(
            "modules that always agree", "comparing uses changed modules",
            """
            import math, operator, json
            math.isclose = operator.eq = lambda *a, **k: True
            json.loads = lambda *a, **k: {"outcome": "passed"}
            def attack(): return 0
            """,
        ),
        _tampering(
            "the runner's own functions", "the runner says what the program wants",
            """
            import sys
            for name, module in list(sys.modules.items()):
                if name.startswith("sandbox") or name == "__main__":
                    for function in ("_say", "_attempt", "_check", "_outcome", "encode", "_equal", "_compared"):
                        if hasattr(module, function):
                            setattr(module, function, lambda *a, **k: {"outcome": "passed", "value": "null"})
            def attack(): return 0
            """,
            limits=ONE_SECOND,
        ),
        _tampering(
            "the runner's system calls", "what is sent is changed on its way",
            """
            import os
            send = os.write
            os.write = lambda number, data: send(number, b'{"outcome": "passed"}\\n') and len(data)
            def attack(): return 0
            """,
        ),
        _tampering(
            "the encoder of results", "every answer becomes the right one",
            """
            import json
            json.dumps = lambda *a, **k: '{"outcome": "passed"}'
            def attack(): return 0
            """,
        ),
        _tampering(
            "the interpreter's exit", "a failure turns into success",
            """
            import os, sys
            end = os._exit
            os._exit = lambda status: end(0)
            sys.excepthook = lambda *a: end(0)
            def attack(): raise ValueError("wrong")
            """,
            tests=_TOKEN, succeeds_without=_COMPARED_INSIDE,
        ),
        _tampering(
            "looking through the frames above", "expected values lie in a caller's variables",
            """
            import sys
            def search(thing, depth=0):
                if isinstance(thing, dict):
                    if "expected" in thing:
                        return thing["expected"]
                    thing = list(thing.values())
                if isinstance(thing, (list, tuple)) and depth < 5:
                    return next(filter(None, (search(item, depth + 1) for item in thing)), None)
            def attack():
                frame = sys._getframe(1)
                while frame is not None:
                    found = search(frame.f_locals) or search(frame.f_globals)
                    if found:
                        return found
                    frame = frame.f_back
                raise LookupError("nothing found")
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _tampering(
            "looking through the garbage collector", "expected values lie in some object",
            """
            import gc
            def attack():
                for holder in gc.get_objects():
                    for thing in gc.get_referents(holder):
                        if type(thing) is dict and isinstance(thing.get("expected"), str):
                            return thing["expected"]
                raise LookupError("nothing found")
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _tampering(
            "looking through modules and closures", "the source of the tests lies somewhere",
            """
            import gc, types
            def attack():
                for thing in gc.get_objects():
                    if isinstance(thing, types.FunctionType) and thing.__name__ == "check":
                        return thing.__code__.co_consts[-1]
                    if isinstance(thing, types.CodeType) and thing.co_name == "check":
                        return thing.co_consts[-1]
                raise LookupError("nothing found")
            """,
        ),
        _tampering(
            "looking through memory", "the bytes of the tests are still there",
            """
            import ctypes
            def attack():
                # the interpreter's own arenas, around an object of ours
                middle = id(object()) & ~0xFFFFF
                text = ctypes.string_at(middle, 0x40000)
                start = text.find(b'"expected": "')
                if start < 0:
                    raise LookupError("nothing found")
                return text[start + 13 : start + 45].decode()
            """,
        ),
        _tampering(
            "watching the runner line by line (settrace)", "expected values pass by",
            """
            import sys
            seen = []
            def watch(frame, event, argument):
                for value in frame.f_locals.values():
                    if isinstance(value, dict) and "expected" in value:
                        seen.append(value["expected"])
                return watch
            sys.settrace(watch)
            frame = sys._getframe()
            while frame is not None:
                frame.f_trace = watch
                frame = frame.f_back
            def attack(): return seen[-1] if seen else "nothing"
            """,
            succeeds_without=_COMPARED_INSIDE,
        ),
        _tampering(
            "watching everything (audit hook)", "expected values pass by",
            """
            import sys
            seen = []
            sys.addaudithook(lambda name, args: seen.append(args) if name == "expected" else None)
            def attack(): return seen[-1] if seen else "nothing"
            """,
        ),
        _tampering(
            "changing small integers", "201 is 200, so that 200 is right",
            """
            import ctypes
            # the digit after ob_refcnt, ob_type and ob_size
            ctypes.c_uint32.from_address(id(201) + 24).value = 200
            def attack(): return 200
            """,
            tests=({"expected": 201}, {"source": "assert attack() > 200"}), succeeds_without=_COMPARED_INSIDE,
        ),
        _tampering(
            "changing the comparison of text", "all texts are equal",
            """
            import ctypes
            # tp_richcompare of str becomes that of object, which compares identities, and that of a class of ours
            class Anything:
                def __eq__(self, other): return True
            offset = 200
            target = ctypes.c_void_p.from_address(id(str) + offset)
            target.value = ctypes.c_void_p.from_address(id(Anything) + offset).value
            def attack(): return "x"
            """,
        ),
        _tampering(
            "a module in place of the runner's", "the runner imports the program's code",
            """
            import sys, types
            for name in ("json", "sandbox.values", "sandbox.harness", "unittest", "pytest"):
                sys.modules[name] = types.SimpleNamespace(dumps=lambda *a: '{"outcome": "passed"}', encode=print)
            class Finder:
                def find_spec(self, name, path=None, target=None): return None
            sys.meta_path.insert(0, Finder())
            def attack(): return 0
            """,
        ),
        Attack(
            "undoing the guards with ctypes", "one of them is off", "system-call filter",
            """
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            def attack():
                unlimited = (ctypes.c_uint64 * 2)(2**64 - 1, 2**64 - 1)
                undone = [libc.setrlimit(kind, unlimited) for kind in (0, 1, 4, 6, 7, 9)]
                undone += [libc.prctl(22, 0, 0, 0, 0), libc.prctl(38, 0, 0, 0, 0), libc.setuid(0)]
                if all(result < 0 for result in undone):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                return "breached"
            """,
            succeeds_without=("system-call filter", "resource limits", "dropped privileges"),
        ),
    ),
)  # fmt: skip
