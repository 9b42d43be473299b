"""The names of the tests in a test file, read from its source: how many must be heard of is known before it runs."""

import ast
from collections.abc import Iterator


def names_of_tests(source: str) -> list[str]:
    """`test_x` for functions, `Class.test_x` for methods, in the order of the file.

    Classes are those that derive from a TestCase or whose name starts with Test. Raises ValueError for a file that
    is no Python, has no tests, or has tests that take arguments.
    """
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"not Python: {error}") from None
    classes = {found.name: found for found in statements if isinstance(found, ast.ClassDef)}
    names: dict[str, None] = {}
    for found in statements:
        if isinstance(found, ast.FunctionDef) and found.name.startswith("test"):
            _check(found, found.name, takes=0)
            names[found.name] = None
        elif isinstance(found, ast.ClassDef) and _holds_tests(found, classes):
            for method in _methods(found, classes):
                name = f"{found.name}.{method.name}"
                _check(method, name, takes=1)
                names[name] = None
    if not names:
        raise ValueError("no tests: no test functions, and no methods of classes named Test or derived from TestCase")
    return list(names)


def _holds_tests(found: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    if found.name.startswith("Test"):
        return True
    return any(ast.unparse(base).endswith("TestCase") for base in found.bases) or any(
        _holds_tests(base, classes) for base in _bases(found, classes)
    )


def _methods(found: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.FunctionDef]:
    for statement in found.body:
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
            yield statement
    for base in _bases(found, classes):
        yield from _methods(base, classes)


def _bases(found: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Of the same file, and not itself."""
    for base in found.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != found.name:
            yield classes[base.id]


def _check(found: ast.FunctionDef, name: str, takes: int) -> None:
    needed = len(found.args.posonlyargs) + len(found.args.args) - len(found.args.defaults)
    if needed != takes and not any(ast.unparse(mark).endswith("staticmethod") for mark in found.decorator_list):
        raise ValueError(f"{name} takes arguments; there are no fixtures here")
