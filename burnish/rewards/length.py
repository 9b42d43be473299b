"""A preference for short completions, in generated tokens."""

from pydantic import Field, model_validator

from burnish.contracts.config import ScorerConfig
from burnish.contracts.section import Section
from burnish.rewards.params import read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker


class LengthParams(Section):
    target: int = Field(ge=0)
    """Tokens up to which the score is 1."""
    limit: int = Field(ge=1)
    """Tokens from which it is 0; it falls linearly in between."""

    @model_validator(mode="after")
    def _in_order(self) -> "LengthParams":
        if self.target >= self.limit:
            raise ValueError(f"target {self.target} must be below limit {self.limit}")
        return self


class LengthScorer:
    """1 for at most `target` tokens, 0 from `limit` on."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        self._params = read_params(config, LengthParams)

    def score(self, sample: Sample) -> float | None:
        left = self._params.limit - generated_tokens(sample)
        return min(1.0, max(0.0, left / (self._params.limit - self._params.target)))


def generated_tokens(sample: Sample) -> int:
    """Tokens that the policy itself generated; observations are not its length."""
    return sum(sample.rollout.loss_mask)
