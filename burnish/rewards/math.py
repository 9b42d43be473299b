"""Mathematical equivalence by math-verify, in a process that can be killed: sympy may run for hours or eat memory."""

from burnish.contracts.config import ScorerConfig
from burnish.rewards.params import NoParams, read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker


class MathScorer:
    """1 when the response's answer is equivalent, else 0; None for other prompts and when the verifier fails."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        read_params(config, NoParams)
        self._worker = worker

    def score(self, sample: Sample) -> float | None:
        verifier = sample.prompt.verifier
        # Sympy reads what an exact answer says as well, so a run may ask for leniency on all of them.
        if verifier.get("kind") not in ("math", "exact"):
            return None
        return self._worker.call("math", answer=str(verifier["answer"]), response=sample.rollout.text)
