"""A few tokens with the trainer's own logprobs, kept in the policy: proof that a sampler runs these weights.

Engines cache, merge, convert and reload weights; each of these has failed in silence somewhere.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from burnish.contracts.errors import ContractError, StageError
from burnish.models.engine import Engine
from burnish.models.grouping import Completion

PROBE_FILE = "probe.json"
# Mean absolute difference in nats beyond rounding: a bfloat16 sampler is a few hundredths off on its own.
_TOLERANCE = {"float32": 0.05, "bfloat16": 0.15}
# Below this, in nats, old and new weights are the same for every purpose.
_ROUNDING = 1e-4
_SAMPLES, _PROMPT_TOKENS, _RESPONSE_TOKENS = 4, 512, 32


class ProbeSample(BaseModel):
    """One scored completion; all lists are [R] but the prompt. It has the shape of a completion to pack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    """Of the response under the policy that it lies in, at temperature 1."""
    previous: list[float] | None = None
    """Under the weights that the training stage started from."""

    @property
    def temperature(self) -> float:
        return 1.0

    @model_validator(mode="after")
    def _aligned(self) -> "ProbeSample":
        lengths = {len(self.logprobs), len(self.previous or self.logprobs), len(self.response_ids)}
        if len(lengths) > 1 or not self.response_ids or not self.input_ids:
            raise ValueError("token ids and logprobs are not of the same length, or there are none")
        return self


class Probe(BaseModel):
    """What is in probe.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    samples: list[ProbeSample]


def choose_probe(completions: Sequence[Completion]) -> list[ProbeSample]:
    """The first few of `completions`, cut where they are long; their logprobs are still to be computed."""
    pairs = [
        (item.input_ids[-_PROMPT_TOKENS:], item.response_ids[:_RESPONSE_TOKENS]) for item in completions[:_SAMPLES]
    ]
    return [
        ProbeSample(input_ids=prompt, response_ids=response, logprobs=[0.0] * len(response))
        for prompt, response in pairs
        if prompt and response
    ]


def write_probe(
    folder: Path, samples: Sequence[ProbeSample], logprobs: list[list[float]], previous: list[list[float]]
) -> None:
    """Put the probe into the policy `folder`: `samples` with their logprobs under its weights and those before it.

    Without samples the folder has no probe afterwards: one that came with a copied file would be of other weights.
    """
    if not samples:
        (folder / PROBE_FILE).unlink(missing_ok=True)
        return
    scored = [
        sample.model_copy(update={"logprobs": new, "previous": old})
        for sample, new, old in zip(samples, logprobs, previous, strict=True)
    ]
    (folder / PROBE_FILE).write_text(Probe(samples=scored).model_dump_json(), "utf-8")


def read_probe(folder: Path) -> list[ProbeSample]:
    """The probe of the policy `folder`; empty where it has none, because it was not trained here.

    Raises ContractError when the file is not a probe.
    """
    path = folder / PROBE_FILE
    if not path.is_file():
        return []
    try:
        return Probe.model_validate_json(path.read_bytes()).samples
    except ValidationError as error:
        raise ContractError(f"policy: {PROBE_FILE}: {error.errors()[0]['msg']}") from None


def check_weights(
    engine: Engine, samples: Sequence[ProbeSample], *, dtype: str, tolerance: float | None, title: str
) -> float | None:
    """Score a policy's probe with `engine`; returns the mean absolute difference in nats a token.

    None without samples or with `tolerance` 0, which turns it off; a tolerance of None takes that of the sampler's
    `dtype`. Raises StageError when the difference exceeds the tolerance, or the engine is at least twice as near to
    the weights before the last training: it then does not run the policy's.
    """
    if tolerance == 0 or not samples:
        return None
    scores = [score for sample in samples for score in engine.score(sample.input_ids, sample.response_ids)]
    gap = _gap(scores, [value for sample in samples for value in sample.logprobs])
    limit = _TOLERANCE[dtype] if tolerance is None else tolerance
    if not gap <= limit:
        raise StageError(
            f"{title}: the engine's logprobs of the policy's probe are off by {gap:.4f} on average, more than "
            f"rollout.probe_tolerance {limit}: it does not run the weights it was given"
        )
    before = [value for sample in samples for value in sample.previous or sample.logprobs]
    old_gap = _gap(scores, before)
    if gap > _ROUNDING and old_gap < gap / 2:
        raise StageError(
            f"{title}: the engine's logprobs of the policy's probe are off by {gap:.2g} on average, but by "
            f"{old_gap:.2g} from those before the last update: it still runs the old weights"
        )
    return gap


def _gap(found: list[float], expected: list[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(found, expected, strict=True))
