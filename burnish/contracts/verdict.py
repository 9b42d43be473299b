"""Whether training is going well: what each update says to the next one, and to the rollouts that follow.

The history that the collapse detector looks at travels inside, so a verdict follows from artifacts alone.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from burnish.contracts.errors import ContractError

VERDICT_FILE = "verdict.json"

Status = Literal["ok", "warn", "rolled_back", "stop"]


class Good(BaseModel):
    """Digests of the manifests that a run can go back to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str
    trainer_state: str
    critic: str


class Verdict(BaseModel):
    """What the collapse detector found after a round."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict_version: Literal[1] = 1
    status: Status = "ok"
    """`warn`: something is off and the round's policy is not called good. `rolled_back`: this round's outputs are the
    last good ones, and what follows is gentler. `stop`: likewise, and nothing follows."""
    round: int = 0
    reasons: list[str] = Field(default_factory=list)
    """One line each: the series, its value and the bound it broke."""
    history: list[dict[str, float | None]] = Field(default_factory=list)
    """Figures of each optimizer step since the start or the last rollback, oldest first."""
    last_good: Good | None = None
    """None: what went into the first update."""
    rollbacks: int = 0
    lr_factor: float = 1.0
    """What rollbacks have multiplied the learning rate by."""
    clip_factor: float = 1.0
    """What rollbacks have multiplied the clip ranges by."""

    @property
    def metadata(self) -> dict[str, object]:
        """For the manifest. `stopped` makes every stage that reads it pass its inputs on without work."""
        stopped: dict[str, object] = {"stopped": True} if self.status == "stop" else {}
        return {"status": self.status, "round": self.round, "reasons": self.reasons} | stopped

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> "Verdict":
        """Parse and validate; `origin` names the file in the error. Raises ContractError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise ContractError(f"verdict {origin}: {field}: {first['msg']}") from None
