"""The rows that pass between stages: one schema a record, versioned; parquet.py writes and reads them.

Rows are joined by their ids, never by position. Missing is None, never 0.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from burnish.contracts.errors import ContractError

Split = Literal["train", "eval", "sft"]
FinishReason = Literal["stop", "length", "abort"]
Verdict = Literal[
    "passed", "wrong", "compile_error", "runtime_error", "timeout", "memory", "output_limit", "refused", "internal"
]


def _schema(*fields: "pa.Field[Any]") -> pa.Schema:
    return pa.schema(list(fields))


@dataclass(frozen=True, slots=True)
class Record:
    """Base of every record. `NAME` and `VERSION` go into the file and are checked on read."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    SCHEMA: ClassVar[pa.Schema]

    def check(self) -> None:
        """Raise ContractError when the row contradicts itself; schemas already guarantee the types."""


@dataclass(frozen=True, slots=True)
class Prompt(Record):
    """A question and how its answers are verified."""

    NAME: ClassVar[str] = "prompt"
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema] = _schema(
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("messages", pa.string()),
        pa.field("text", pa.string()),
        pa.field("verifier", pa.string(), nullable=False),
        pa.field("demonstration", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
    )

    prompt_id: str
    task: str
    split: Split
    messages: list[dict[str, str]] | None
    """Chat turns ({role, content}), or None where `text` is the raw prompt."""
    text: str | None
    verifier: dict[str, Any]
    """`{"kind": "exact" | "math" | "code" | "reasoning_gym", ...}`; what each kind holds: burnish/tasks."""
    demonstration: str | None = None
    """The assistant's text to imitate, on `sft` rows."""
    metadata: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if (self.messages is None) == (self.text is None):
            raise ContractError(f"prompt {self.prompt_id}: exactly one of messages and text must be given")
        if self.split not in get_args(Split):
            raise ContractError(f"prompt {self.prompt_id}: split is {self.split!r}; use train, eval or sft")


@dataclass(frozen=True, slots=True)
class Rollout(Record):
    """One trained sequence. Token ids are the truth; `text` is for people and is never tokenised again."""

    NAME: ClassVar[str] = "rollout"
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema] = _schema(
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("policy_version", pa.int64(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("response_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("rollout_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("top_k", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("logprobs_mode", pa.string(), nullable=False),
        pa.field("prompt_text", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    )

    sample_id: str
    episode_id: str
    turn: int
    group_id: str
    prompt_id: str
    task: str
    policy_version: int
    """Updates behind the weights that sampled this row."""
    input_ids: list[int]
    """Prompt tokens, [P], no padding."""
    response_ids: list[int]
    """Generated and injected tokens, [R]; the end-of-sequence token is included when it was sampled."""
    loss_mask: list[int]
    """[R]: 1 on tokens the policy generated, end-of-sequence included; 0 on observations and injected text."""
    rollout_logprobs: list[float]
    """[R]: the sampler's logprob of each token; only those under loss_mask 1 mean anything."""
    finish_reason: FinishReason
    temperature: float
    top_p: float
    top_k: int
    seed: int
    logprobs_mode: str
    """`processed`: after division by the temperature, which is what the trainer recomputes."""
    prompt_text: str
    text: str

    def check(self) -> None:
        lengths = {len(self.response_ids), len(self.loss_mask), len(self.rollout_logprobs)}
        if len(lengths) != 1:
            raise ContractError(
                f"rollout {self.sample_id}: response_ids, loss_mask and rollout_logprobs have lengths "
                f"{len(self.response_ids)}, {len(self.loss_mask)}, {len(self.rollout_logprobs)}; they must agree"
            )
        if not self.input_ids or not self.response_ids:
            raise ContractError(f"rollout {self.sample_id}: input_ids and response_ids must not be empty")
        if self.finish_reason not in get_args(FinishReason):
            raise ContractError(f"rollout {self.sample_id}: finish_reason is {self.finish_reason!r}")
        if not set(self.loss_mask) <= {0, 1}:
            raise ContractError(f"rollout {self.sample_id}: loss_mask holds something else than 0 and 1")
        # A server that answers null for a logprob must fail its sample, not train on a made-up 0.
        if not all(value is not None and math.isfinite(value) for value in self.rollout_logprobs):
            raise ContractError(f"rollout {self.sample_id}: rollout_logprobs holds a null or non-finite value")


@dataclass(frozen=True, slots=True)
class Execution(Record):
    """What running one sample's code against its tests gave."""

    NAME: ClassVar[str] = "execution"
    VERSION: ClassVar[int] = 2
    SCHEMA: ClassVar[pa.Schema] = _schema(
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("verdicts", pa.list_(pa.string()), nullable=False),
        pa.field("details", pa.list_(pa.string()), nullable=False),
        pa.field("stdout_head", pa.string(), nullable=False),
        pa.field("stderr_head", pa.string(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("degraded", pa.bool_(), nullable=False),
    )

    sample_id: str
    verdicts: list[Verdict]
    """One per test."""
    details: list[str] = field(default_factory=list)
    """One per test, a line on why (the exception and its last frame, say); or none at all."""
    stdout_head: str = ""
    stderr_head: str = ""
    seconds: float = 0.0
    degraded: bool = False
    """The kernel lacked a protection and the run was told to go on."""

    def check(self) -> None:
        unknown = set(self.verdicts) - set(get_args(Verdict))
        if unknown:
            raise ContractError(f"execution {self.sample_id}: unknown verdict {sorted(unknown)[0]!r}")
        if len(self.details) not in {0, len(self.verdicts)}:
            raise ContractError(
                f"execution {self.sample_id}: {len(self.details)} details for {len(self.verdicts)} verdicts; one each"
            )


@dataclass(frozen=True, slots=True)
class Reward(Record):
    """The score of one sample and what it is made of."""

    NAME: ClassVar[str] = "reward"
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema] = _schema(
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("components", pa.string(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("flags", pa.list_(pa.string()), nullable=False),
    )

    sample_id: str
    components: dict[str, float | None]
    """Score of each scorer; None: not applicable or failed, which is not 0."""
    reward: float | None
    """The fused value; None when no component gave one. Then the sample has no say in its group."""
    flags: list[str] = field(default_factory=list)
    """`truncated`, `malformed`, hacking markers."""


@dataclass(frozen=True, slots=True)
class Logprob(Record):
    """The trainer's view of one sample under the policy at the start of the update."""

    NAME: ClassVar[str] = "logprob"
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema] = _schema(
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("old_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("ref_logprobs", pa.list_(pa.float32())),
        pa.field("entropy", pa.list_(pa.float32()), nullable=False),
        pa.field("values", pa.list_(pa.float32())),
    )

    sample_id: str
    old_logprobs: list[float]
    """[R], aligned with response_ids."""
    ref_logprobs: list[float] | None
    """[R] under the frozen reference; None when no KL is asked for."""
    entropy: list[float]
    """[R] nats, of the distribution the token was drawn from."""
    values: list[float] | None = None
    """[R] from the critic (PPO)."""

    def check(self) -> None:
        if not all(math.isfinite(value) for value in self.old_logprobs):
            raise ContractError(f"logprob {self.sample_id}: old_logprobs holds a non-finite value")
