"""Scores of executions: the share of tests passed, or all of them or nothing."""

from typing import Literal

from burnish.contracts.config import ScorerConfig
from burnish.contracts.section import Section
from burnish.rewards.params import read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker


class CodeParams(Section):
    mode: Literal["rate", "all"] = "all"
    """`all`: 1 when every test passed, else 0. `rate`: the share of tests passed."""


class CodeScorer:
    """None for prompts without tests, for samples that were not executed, and where the sandbox itself failed."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        self._mode = read_params(config, CodeParams).mode

    def score(self, sample: Sample) -> float | None:
        if sample.prompt.verifier.get("kind") != "code" or sample.execution is None:
            return None
        verdicts = sample.execution.verdicts
        if not verdicts or "internal" in verdicts:
            return None
        passed = verdicts.count("passed")
        return passed / len(verdicts) if self._mode == "rate" else float(passed == len(verdicts))
