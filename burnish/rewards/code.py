"""Scores of executions: 1 for a test passed, by configuration something for each way of failing, over all tests."""

from typing import Annotated, Literal

from pydantic import Field

from burnish.contracts.config import ScorerConfig
from burnish.contracts.section import Section
from burnish.rewards.params import read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker

Failure = Literal["wrong", "compile_error", "runtime_error", "timeout", "memory", "output_limit", "refused"]
# Below the 1 of a test passed: what failed must never count as solved.
Score = Annotated[float, Field(lt=1, allow_inf_nan=False)]


class CodeParams(Section):
    mode: Literal["rate", "all"] = "all"
    """`all`: 1 when every test passed, else the least score of a test. `rate`: the mean over tests."""
    rewards: dict[Failure, Score] = Field(default_factory=dict)
    """Score of a test by its verdict, such as {compile_error: -0.5, timeout: -0.2}; verdicts left out: 0."""


class CodeScorer:
    """None for prompts without tests, for samples that were not executed, and where the sandbox itself failed."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        params = read_params(config, CodeParams)
        self._mode = params.mode
        self._scores: dict[str, float] = {"passed": 1.0}
        self._scores |= {str(verdict): score for verdict, score in params.rewards.items()}

    def score(self, sample: Sample) -> float | None:
        if sample.prompt.verifier.get("kind") != "code" or sample.execution is None:
            return None
        verdicts = sample.execution.verdicts
        if not verdicts or "internal" in verdicts:
            return None
        scores = [self._scores.get(verdict, 0.0) for verdict in verdicts]
        return sum(scores) / len(scores) if self._mode == "rate" else min(scores)
