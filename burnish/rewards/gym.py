"""Scores of reasoning-gym's own `score_answer`, in the process that can be killed.

The answer is what stands in the last `<answer>` tag; without one, the last line that is not empty, after its last
`=` or `answer is`.
"""

import re

from burnish.contracts.config import ScorerConfig
from burnish.rewards.params import NoParams, read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker

_INTRODUCTION = re.compile(r"\A.*(?:=|\banswer is:?|\banswer:)", re.IGNORECASE)


class GymScorer:
    """The generator's score, in [0, 1]; None for other prompts and when the verifier fails."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        read_params(config, NoParams)
        self._worker = worker

    def score(self, sample: Sample) -> float | None:
        verifier = sample.prompt.verifier
        if verifier.get("kind") != "reasoning_gym":
            return None
        entry = {key: verifier[key] for key in ("dataset", "params", "seed", "size", "index")}
        return self._worker.call("reasoning_gym", **entry, answer=final_answer(sample.rollout.text))


def final_answer(response: str) -> str:
    """The part of `response` that is scored, by the rule at the top of this file."""
    before, closed, _ = response.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    if opened and closed:
        return answer.strip()
    lines = [line for line in response.splitlines() if line.strip()]
    return _INTRODUCTION.sub("", lines[-1]).strip().removesuffix(".") if lines else ""
