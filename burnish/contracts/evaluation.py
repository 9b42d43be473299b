"""What an evaluation found: `evaluation.json`, one outcome a prompt and pass@k with intervals, versioned.

Outcomes stay per prompt, so that two evaluations of the same prompts can be compared in pairs.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from burnish.contracts.errors import ContractError


class PromptOutcome(BaseModel):
    """How often one held-out prompt was solved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: str
    task: str
    samples: int = Field(ge=0)
    """Completions with a verdict; one whose verifier failed is not among them."""
    passed: int = Field(ge=0)
    """Completions that passed."""


class Score(BaseModel):
    """pass@k over the prompts of one task, or of all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: int = Field(ge=1)
    task: str | None
    """None: all tasks together, every prompt counting once."""
    prompts: int = Field(ge=0)
    """Prompts with at least k verdicts."""
    value: float | None
    """None: no prompt had k verdicts."""
    low: float | None
    high: float | None
    """Ends of the 95 % bootstrap interval over prompts."""


class Evaluation(BaseModel):
    """One evaluation of one policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluation_version: Literal[1] = 1
    label: str
    """`before` or `after`."""
    policy_version: int
    """Updates behind the weights."""
    temperature: float
    samples: int
    """Completions asked for of each prompt."""
    scores: list[Score]
    outcomes: list[PromptOutcome]
    unscored: int = 0
    """Completions whose verifier failed."""
    response_tokens: float | None = None
    """Mean response length."""
    truncated: float | None = None
    """Share of completions that hit the length limit."""

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> "Evaluation":
        """Parse and validate; `origin` names the file in the error. Raises ContractError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise ContractError(f"evaluation {origin}: {field}: {first['msg']}") from None
