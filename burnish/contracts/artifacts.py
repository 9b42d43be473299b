"""Manifests: what KFP carries between stages in place of bytes, and the record a finished stage leaves behind.

A manifest lists blobs by digest; the bytes live once in the store. Two runs that make the same bytes from the
same inputs make the same manifest, so nothing in it depends on the time or the machine.
"""

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from burnish.contracts.errors import ContractError

MANIFEST_VERSION = 1

Kind = Literal[
    "config",
    "prompts",
    "policy",
    "trainer_state",
    "critic",
    "verdict",
    "rollouts",
    "executions",
    "rewards",
    "logprobs",
    "evaluation",
    "report",
]


class Blob(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """Relative path inside the artifact, with forward slashes."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)
    """Bytes."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        # A manifest is data from a bucket: a path such as ../../etc/passwd must not leave the artifact's folder.
        if not value or value.startswith("/") or "\\" in value or {"", ".", ".."} & set(value.split("/")):
            raise ValueError(f"blob path {value!r} leaves the artifact's folder")
        return value


class Lineage(BaseModel):
    """Where an artifact comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    round: int | None = None
    """Round (from 1), None outside the rounds."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digest of each input manifest, by the input's name."""
    code: str = ""
    """Digest of the burnish sources that made it."""


class Manifest(BaseModel):
    """An artifact: kind, blobs, lineage and what people ask of it first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    manifest_version: Literal[1] = 1
    kind: Kind
    blobs: list[Blob]
    lineage: Lineage
    counts: dict[str, int] = Field(default_factory=dict)
    """Numbers of rows, tokens and the like."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """JSON values, e.g. policy_version."""

    @field_validator("blobs")
    @classmethod
    def _sorted_and_distinct(cls, value: list[Blob]) -> list[Blob]:
        paths = [blob.path for blob in value]
        if len(set(paths)) != len(paths):
            raise ValueError("two blobs of a manifest have the same path")
        return sorted(value, key=lambda blob: blob.path)

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex: the artifact's identity."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.size for blob in self.blobs)

    def to_json(self) -> str:
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> "Manifest":
        """Parse and validate; `origin` names the file or key in the error. Raises ContractError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "JSON"
            raise ContractError(f"manifest {origin}: {field}: {first['msg']}") from None


class StageRecord(BaseModel):
    """What a stage leaves in `runs/<run_id>/`: its metrics, timings and outputs, or why it failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    record_version: Literal[1] = 1
    run_id: str
    stage: str
    label: str = ""
    """Tells two uses of a stage in one run apart, e.g. `before` and `after` for evaluate."""
    round: int | None = None
    shard: str = ""
    """`2/3` where several pods share the work. What the whole measured is in the record without it."""
    key: str
    """Digest of everything the result depends on; the same key gives the same result."""
    cached: bool = False
    """The result was remembered from an earlier attempt; metrics and timings are those of that attempt."""
    cached_from: str = ""
    """Run that the earlier attempt was made in."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Manifest digest of each output."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Scalars of the stage. None: not measurable here, which is not 0."""
    series: list[dict[str, float | None]] = Field(default_factory=list)
    """Rows of scalars along `step`, e.g. one per optimizer step."""
    timings: dict[str, float] = Field(default_factory=dict)
    """Seconds: start (process start to first line), import, download, compute, upload, total."""
    peak_memory_mb: float | None = None
    """Of the stage's largest process."""
    load: list[dict[str, float]] = Field(default_factory=list)
    """Rows of what the stage's processes took, along `time` (Unix): cores, memory, GPUs (burnish/track/load.py)."""
    image: str = ""
    """Container image that ran it, as BURNISH_IMAGE names it; empty outside a container."""
    resources: dict[str, float] = Field(default_factory=dict)
    """What its pod asked for, as BURNISH_RESOURCES says it: `cpu` in cores, GPUs by type. Empty: not known."""
    started_at: float = 0.0
    """Unix time."""
    finished_at: float = 0.0
    error: str | None = None
    """One line, when the stage failed."""
    skipped: bool = False
    """The run had been stopped before this stage's turn, so it passed its inputs on."""
    stop_reason: str = ""
    """One line, where this very stage was the one that stopped the run."""

    @property
    def seconds(self) -> float:
        """From the start of its process to its end."""
        return self.timings.get("total") or max(0.0, self.finished_at - self.started_at)

    @property
    def title(self) -> str:
        """`round 3 - update`, `round 3 - rollout 2/4`, `evaluate - after`, `sft`: the display name everywhere."""
        return stage_title(self.stage, self.round, self.label, self.shard)


def stage_title(stage: str, round: int | None = None, label: str = "", shard: str = "") -> str:
    """The name people see for one use of a stage in the DAG."""
    name = f"round {round} - {stage}" if round is not None else stage
    if shard:
        name = f"{name} {shard}"
    return f"{name} - {label}" if label else name


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes. NaN is refused."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
