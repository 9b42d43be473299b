"""The code around trusted tests, inside a sandbox that holds no foreign code: assertions and checkers.

They run confined all the same, because what the program answers or printed may be made to harm whoever reads it.
"""

from typing import Any

from sandbox.channel import PEER_ANSWERS, PEER_QUESTIONS, say
from sandbox.remote import CandidateEnded, CompileError, NotConfined, Program

_MESSAGE_LIMIT = 500


def check(job: dict[str, Any]) -> None:
    """Run assertions against the program behind the pipe and say how that went."""
    program = Program(PEER_QUESTIONS, PEER_ANSWERS, job["answer_limit"])
    name = job["entry_point"]

    def candidate(*args: Any, **kwargs: Any) -> Any:
        return program.ask(do="call", on=None, name=name, args=list(args), kwargs=kwargs)

    candidate.__name__ = name
    try:
        program.load()
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(compile(job["context"], "context.py", "exec", dont_inherit=True), namespace)
        namespace |= {name: candidate, "candidate": candidate}
        exec(compile(job["source"], "tests.py", "exec", dont_inherit=True), namespace)
        if callable(namespace.get("check")):
            namespace["check"](candidate)
    except BaseException as error:
        say(outcome(error))
    else:
        say({"outcome": "passed"})


def judge(job: dict[str, Any]) -> None:
    """Ask a checker whether what the program wrote is right."""
    namespace: dict[str, Any] = {"__name__": "checker"}
    try:
        exec(compile(job["source"], "checker.py", "exec", dont_inherit=True), namespace)
        right = namespace["check"](job["input"], job["expected"], job["got"])
    except AssertionError as error:
        say({"outcome": "wrong", "detail": _one_line(error)})
    except BaseException as error:
        # Reading nonsense, most likely: a checker need not be prepared for all of it.
        say({"outcome": "wrong", "detail": f"checker: {_one_line(error)}"})
    else:
        say({"outcome": "passed" if right else "wrong"})


def outcome(error: BaseException) -> dict[str, str]:
    """What an exception out of a test says about the program."""
    if isinstance(error, CandidateEnded):
        return {"outcome": "ended"}
    if isinstance(error, NotConfined):
        return {"outcome": "internal", "detail": "the program's process ended before it was confined"}
    if isinstance(error, CompileError):
        return {"outcome": "compile_error", "detail": str(error)[:_MESSAGE_LIMIT]}
    if isinstance(error, MemoryError):
        return {"outcome": "memory"}
    foreign = getattr(error, "foreign", None)
    wrong = isinstance(error, AssertionError) and foreign is None
    return {"outcome": "wrong" if wrong else "runtime_error", "detail": (foreign or _one_line(error))[:_MESSAGE_LIMIT]}


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_LIMIT]
