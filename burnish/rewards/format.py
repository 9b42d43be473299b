"""Whether a response has the form that was asked for: think tags, an ending, a regular expression."""

from pydantic import model_validator

from burnish.contracts.config import ScorerConfig
from burnish.contracts.section import Section
from burnish.rewards.params import read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker


class FormatParams(Section):
    regex: str | None = None
    """Pattern that must be found in the response (dot matches newlines); tried in the killable worker."""
    think: tuple[str, str] | None = None
    """Opening and closing tag, each exactly once and in order, with an answer after them."""
    ends_with: str | None = None
    """Text that the response must end with, spaces aside."""

    @model_validator(mode="after")
    def _something_to_check(self) -> "FormatParams":
        if self.regex is None and self.think is None and self.ends_with is None:
            raise ValueError("give at least one of regex, think and ends_with")
        if self.regex is not None:
            import re

            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f"regex is not valid: {error}") from None
        return self


class FormatScorer:
    """1 when every check holds, else 0; None when the pattern could not be tried in time."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        self._params = read_params(config, FormatParams)
        self._worker = worker

    def score(self, sample: Sample) -> float | None:
        text, params = sample.rollout.text, self._params
        if params.think is not None and not well_formed_thinking(text, *params.think):
            return 0.0
        if params.ends_with is not None and not text.rstrip().endswith(params.ends_with.rstrip()):
            return 0.0
        if params.regex is None:
            return 1.0
        return self._worker.call("regex", pattern=params.regex, text=text)

    def malformed(self, sample: Sample) -> bool:
        """Whether the thinking is not closed, opened twice, or followed by nothing."""
        return self._params.think is not None and not well_formed_thinking(sample.rollout.text, *self._params.think)


def well_formed_thinking(text: str, opening: str, closing: str) -> bool:
    """`<think>...</think>` once, in order, at the start, with something after it."""
    before, found_open, rest = text.partition(opening)
    thought, found_close, answer = rest.partition(closing)
    tags_left = any(tag in part for tag in (opening, closing) for part in (before, thought, answer))
    return bool(found_open and found_close and not before.strip() and answer.strip()) and not tags_left
