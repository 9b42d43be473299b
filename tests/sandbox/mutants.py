"""Wrong versions of a right program, by small changes of its syntax tree, and a plain interpreter that tells which are.

As a script: problems as JSON on standard input, for each the first mutant that its own test rejects on the output.
"""

import ast
import copy
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator

_COMPARISONS = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip
_SECONDS, _MEMORY = 2, 2**30


def mutants(source: str) -> Iterator[str]:
    """`source` with one thing changed, for everything that can be; not all of them are wrong."""
    tree = ast.parse(source)
    count = sum(1 for _ in ast.walk(tree))
    for index in range(count):
        for change in (_compare, _operate, _constant, _negate, _return_none):
            changed = copy.deepcopy(tree)
            node = next(node for number, node in enumerate(ast.walk(changed)) if number == index)
            if change(node):
                yield ast.unparse(changed)


def _compare(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    return True


def _operate(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return False
    node.op = _OPERATIONS[type(node.op)]()
    return True


def _constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int):
        return False
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    return True


def _negate(node: ast.AST) -> bool:
    if not isinstance(node, ast.If | ast.IfExp):
        return False
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return True


def _return_none(node: ast.AST) -> bool:
    if not isinstance(node, ast.Return):
        return False
    node.value = ast.Constant(None)
    return True


def judged(code: str, test: str, entry_point: str) -> str:
    """`wrong` when the test's own assertions fail, `error` on any other end but passing, in a process of its own."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        signal.alarm(_SECONDS)
        status = 2
        try:
            namespace: dict[str, object] = {}
            exec(code, namespace)
            exec(test, namespace)
            namespace["check"](namespace[entry_point])  # type: ignore[operator]
            status = 0
        except AssertionError:
            status = 1
        except BaseException:
            status = 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "passed", 1: "wrong"}.get(status, "error")


def wrong_version(problem: dict[str, str]) -> dict[str, str]:
    """The first mutant whose assertions fail; where none does, the first that ends in an error."""
    second_best = {}
    for mutant in mutants(problem["prompt"] + problem["canonical_solution"]):
        verdict = judged(mutant, problem["test"], problem["entry_point"])
        if verdict == "wrong":
            return {"code": mutant, "verdict": verdict}
        if verdict == "error" and not second_best:
            second_best = {"code": mutant, "verdict": verdict}
    return second_best


def main() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    out = os.dup(1)
    os.dup2(2, 1)  # some solutions print
    found = {name: wrong_version(problem) for name, problem in json.load(sys.stdin).items()}
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main()
