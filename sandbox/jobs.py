"""A job (one program, its tests, its limits, whose it is) and its result, as JSON that crosses a wire.

The same two objects go to the service, into a container and back; nothing else does.
"""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sandbox.limits import Limits
from sandbox.spec import SpecError, parse_spec
from sandbox.verdicts import Result

_NAME = re.compile(r"[A-Za-z0-9._:/@+=-]{1,200}")


class JobError(ValueError):
    """A job that cannot be run as it was given; the message names the field and never quotes code."""


@dataclass(frozen=True)
class Job:
    """One program to be tested."""

    job_id: str
    """Chosen by whoever submits it; giving the same again asks for the same job."""
    code: str
    spec: dict[str, Any]
    """What `sandbox.spec.parse_spec` takes."""
    owner: str = "anonymous"
    """Who waits for the result; queues and limits are kept by owner."""
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> bytes:
        """One line; the same job gives the same line."""
        return json.dumps(vars(self) | {"limits": vars(self.limits)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, line: bytes) -> "Job":
        """The job in what `to_json` made. Foreign text goes through `parse_job`."""
        raw = json.loads(line)
        return cls(**raw | {"limits": Limits(**raw["limits"])})


def parse_job(raw: Any, most: Limits | None = None, job_id: str | None = None) -> Job:
    """The Job in `{job_id, code, spec, owner?, limits?}`; no limit is above that of `most`. Raises JobError.

    `job_id` is the one to take where none is given.
    """
    if not isinstance(raw, dict):
        raise JobError("a job must be an object")
    unknown = sorted(set(raw) - {"job_id", "owner", "code", "spec", "limits"})
    if unknown:
        raise JobError(f"a job has no field {unknown[0][:100]!r}")
    code, spec = raw.get("code"), raw.get("spec")
    if not isinstance(code, str):
        raise JobError("code must be a string")
    if not isinstance(spec, dict):
        raise JobError("spec must be an object")
    try:
        parse_spec(spec)
    except SpecError as error:
        raise JobError(f"spec: {error}") from None
    return Job(
        job_id=_name(raw.get("job_id", job_id), "job_id"),
        owner=_name(raw.get("owner", "anonymous"), "owner"),
        code=code,
        spec=spec,
        limits=_limits(raw.get("limits", {}), most),
    )


def result_to_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def result_from_json(raw: Any) -> Result:
    """The Result in what `result_to_json` made. Raises JobError when it is something else."""
    if not isinstance(raw, dict) or set(raw) != {column.name for column in fields(Result)}:
        raise JobError("not a result of this version of the sandbox")
    return Result(**raw | {"verdicts": tuple(raw["verdicts"]), "details": tuple(raw["details"])})


def internal_result(job: Job, why: str) -> Result:
    """What is said of a job whose run failed through no fault of its program."""
    tests = parse_spec(job.spec).size
    return Result(
        verdicts=("internal",) * tests, details=(why,) * tests, stdout="", stderr="", seconds=0.0, degraded=False
    )


def _name(value: Any, name: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise JobError(f"{name} must be 1 to 200 letters, digits and . _ : / @ + = -")
    return value


def _limits(raw: Any, most: Limits | None) -> Limits:
    if not isinstance(raw, dict):
        raise JobError("limits must be an object")
    chosen = asdict(Limits())
    for name, value in raw.items():
        if name not in chosen:
            raise JobError(f"limits has no field {str(name)[:100]!r}; it has {', '.join(chosen)}")
        kind = type(chosen[name])
        if isinstance(value, bool) or not isinstance(value, int | float if kind is float else kind):
            raise JobError(f"limits.{name} must be of type {kind.__name__}")
        # Not `value <= 0`, which JSON's NaN would pass.
        if not value > 0:
            raise JobError(f"limits.{name} must be above 0")
        chosen[name] = kind(value)
    if most is not None:
        chosen = {name: min(value, getattr(most, name)) for name, value in chosen.items()}
    return Limits(**chosen)
