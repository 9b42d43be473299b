"""What makes many short runs one long training: where a run starts, what a campaign does, and the campaign's state.

The state is one small JSON document; the object store keeps it, and everything in it refers to artifacts by digest.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from burnish.contracts.errors import ContractError
from burnish.contracts.section import Section

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class StartConfig(Section):
    """Where the run starts: from the base model, or where an earlier run ended. `burnish campaign` fills it in."""

    round: int = Field(0, ge=0)
    """Rounds that were trained before; this run's rounds count on from there."""
    total_rounds: int = Field(0, ge=0)
    """Rounds that learning-rate and KL schedules span. 0: `round` + `rounds`."""
    policy: Digest = ""
    """Digest of the policy to go on from, in place of the base model and the cold start. Empty: from the start."""
    trainer_state: Digest = ""
    """Digest of the trainer state that belongs to the policy."""
    critic: Digest = ""
    """Digest of the critic that belongs to the policy."""
    verdict: Digest = ""
    """Digest of the last verdict: the collapse detector's history goes on."""
    reference: Digest = ""
    """Digest of the policy that the KL term refers to. Empty: `policy`."""
    evaluation: Digest = ""
    """Digest of an evaluation of the policy, which is then not evaluated again."""
    campaign: str = ""
    """Id of the campaign that this run is a chunk of."""

    @model_validator(mode="after")
    def _whole(self) -> "StartConfig":
        parts = {name: getattr(self, name) for name in ("policy", "trainer_state", "critic", "verdict")}
        missing = sorted(name for name, digest in parts.items() if not digest)
        if missing and len(missing) < len(parts):
            raise ValueError(f"{missing[0]} is missing; policy, trainer_state, critic and verdict go together")
        if missing and (self.reference or self.evaluation):
            raise ValueError("reference and evaluation need a policy to go on from")
        return self


class CampaignConfig(Section):
    """Training beyond what one DAG holds: chunk after chunk of rounds, by `burnish campaign`."""

    rounds: int = Field(20, ge=1)
    """Rounds in total."""
    rounds_per_chunk: int = Field(0, ge=0)
    """Rounds of one chunk, which is one run. 0: `rounds` of the run, outside of this section."""
    evaluate_every: int = Field(1, ge=0)
    """Chunks between evaluations; the last chunk is always evaluated. 0: only that one."""
    on_collapse: Literal["rollback", "stop", "continue"] = "rollback"
    """When the collapse detector ends a chunk. `rollback`: the next one goes on from the last good policy, gentler;
    `stop`: the campaign ends with it. Under both, chunks have `collapse.action=stop` where it is `warn`. `continue`:
    `collapse.action` holds as it is."""
    max_rollbacks: int = Field(2, ge=0)
    """Rollbacks before the campaign is stopped."""
    max_hours: float | None = Field(None, gt=0)
    """No chunk starts after the chunks have taken so many hours."""


class RoundFigures(BaseModel):
    """What the summary shows of one round; None: not measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int
    reward: float | None = None
    kl: float | None = None
    entropy: float | None = None
    response_length: float | None = None


class Outcome(BaseModel):
    """What a finished chunk left: digests to go on from, and its figures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str
    trainer_state: str
    critic: str
    verdict: str
    reference: str
    """The policy that the KL term of its first round referred to."""
    collapsed: bool = False
    """The detector stopped the chunk; policy, trainer state and critic are the last good ones."""
    reasons: list[str] = Field(default_factory=list)
    """Of the collapse, or why the budget ended the chunk early."""
    last_round: int
    """Last round that was trained; a stop leaves out those after it."""
    evaluation: str = ""
    """Digest of the evaluation after the chunk; empty when none was due."""
    before: dict[str, float] = Field(default_factory=dict)
    """pass@k of the policy that the chunk started from, where it was evaluated."""
    after: dict[str, float] = Field(default_factory=dict)
    rounds: list[RoundFigures] = Field(default_factory=list)
    seconds: float = 0.0
    """In which at least one of its stages ran."""
    cost: float | None = None
    """None: not known."""


class Chunk(BaseModel):
    """One child run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    run_id: str
    """Decided and written down before the run is submitted, so that it can be asked for."""
    start: StartConfig
    rounds: int
    evaluated: bool = True
    """Whether it ends with an evaluation."""
    rolled_back: bool = False
    """Whether it goes on from the last good policy of a chunk that collapsed."""
    budget: float | None = None
    """What it may cost."""
    attempt: int = 1
    """Runs of this chunk so far; what an earlier one finished is not repeated."""
    status: Literal["planned", "done", "failed"] = "planned"
    error: str | None = None
    link: str = ""
    """Where people look at the run."""
    outcome: Outcome | None = None

    @property
    def last_round(self) -> int:
        """Number of its last round, trained or not."""
        return self.start.round + self.rounds

    @property
    def short_of_budget(self) -> bool:
        """Whether the budget ended it before its last round."""
        found = self.outcome
        return found is not None and found.last_round < self.last_round and not found.collapsed


class Campaign(BaseModel):
    """The state of a campaign."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign_version: Literal[1] = 1
    campaign_id: str
    revision: int = 0
    """Each change has the next number; two controllers cannot both write the same one."""
    controller: str = ""
    """Who wrote it."""
    status: Literal["running", "finished", "stopped"] = "running"
    reason: str = ""
    """Why it stopped."""
    chunks: list[Chunk] = Field(default_factory=list)

    @property
    def last(self) -> Outcome | None:
        """Of the last chunk that is done."""
        return next((chunk.outcome for chunk in reversed(self.chunks) if chunk.outcome), None)

    @property
    def rounds_done(self) -> int:
        """Rounds behind, those that were undone included: a number is not used again."""
        return self.last.last_round if self.last else 0

    @property
    def rollbacks(self) -> int:
        return sum(chunk.rolled_back for chunk in self.chunks)

    @property
    def hours(self) -> float:
        """That the finished chunks took."""
        return sum(chunk.outcome.seconds for chunk in self.chunks if chunk.outcome) / 3600

    @property
    def cost(self) -> float | None:
        """Of the finished chunks; None: not known of all of them."""
        costs = [chunk.outcome.cost for chunk in self.chunks if chunk.outcome]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> "Campaign":
        """Parse and validate; `origin` names the key in the error. Raises ContractError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise ContractError(f"campaign {origin}: {field}: {first['msg']}") from None
