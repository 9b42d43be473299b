"""The other end of the worker: verifiers that may hang or explode, one JSON line in, one out.

Run as `python -m burnish.rewards.verifiers MEMORY_MB`; it ends when its input does.
"""

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def math(answer: str, response: str) -> float | None:
    """1 or 0; None when the reference answer itself cannot be read."""
    from math_verify import parse, verify

    # Their own time limits use SIGALRM; ours is the parent.
    gold = parse(answer, parsing_timeout=None) or parse(f"${answer}$", parsing_timeout=None)
    if not gold:
        return None
    return float(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None))


def reasoning_gym(dataset: str, params: dict[str, Any], seed: int, size: int, index: int, answer: str) -> float:
    """The generator's own score of `answer` to its entry `index`."""
    source = _dataset(dataset, json.dumps(params, sort_keys=True), seed, size)
    return float(source.score_answer(answer, source[index]))


def regex(pattern: str, text: str) -> float:
    """1 when `pattern` is found in `text`."""
    return float(re.search(pattern, text, re.DOTALL) is not None)


VERIFIERS: dict[str, Callable[..., float | None]] = {"math": math, "reasoning_gym": reasoning_gym, "regex": regex}
_IMPORTS = {"math": "math_verify", "reasoning_gym": "reasoning_gym"}


@cache
def _dataset(name: str, params: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(name, seed=seed, size=size, **json.loads(params))


def main(memory_mb: int) -> None:
    """Answer calls until the input ends."""
    # Their libraries print; what counts goes where nothing else can write.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        call = json.loads(line)
        # A parent that was killed cannot kill: end by ourselves, well after its limit.
        signal.alarm(call["alarm"])
        reply = _reply(call)
        signal.alarm(0)
        print(json.dumps(reply), file=answers, flush=True)


def _reply(call: dict[str, Any]) -> dict[str, Any]:
    try:
        if "prepare" in call:
            __import__(_IMPORTS.get(call["prepare"], "re"))
            return {"ready": True}
        return {"score": VERIFIERS[call["verifier"]](**call["arguments"])}
    except ImportError as error:
        return {"missing": str(error)}
    except (Exception, RecursionError, MemoryError) as error:
        # Whatever a verifier trips over on a model's text makes the score missing; the parent counts it.
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    main(int(sys.argv[1]))
