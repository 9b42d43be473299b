"""Rollouts and prompts for tests of rewards."""

from typing import Any

from burnish.contracts.config import ScorerConfig
from burnish.contracts.records import Execution, Prompt, Rollout
from burnish.rewards.scorer import Sample, make_scorer
from burnish.rewards.worker import VerifierWorker


def prompt(prompt_id: str = "p", split: str = "train", task: str = "t", **verifier: Any) -> Prompt:
    return Prompt(prompt_id, task, split, [{"role": "user", "content": prompt_id}], None, verifier)  # type: ignore[arg-type]


def rollout(
    text: str,
    sample_id: str = "s",
    prompt_id: str = "p",
    finish: str = "stop",
    tokens: int = 3,
    group: str = "g",
    task: str = "t",
) -> Rollout:
    ids = list(range(tokens + 1))
    # The last token is an observation: it is not the policy's length.
    mask = [1] * tokens + [0]
    return Rollout(
        sample_id, sample_id, 0, group, prompt_id, task, 0, [1], ids, mask, [-0.5] * len(ids), finish,  # type: ignore[arg-type]
        1.0, 1.0, 0, 0, "processed", "", text,
    )  # fmt: skip


def scored(name: str, text: str, verifier: dict[str, Any], execution: Execution | None = None, **params: Any):
    """The score of one scorer that needs no worker."""
    sample = Sample(rollout(text), prompt(**verifier), execution)
    return make_scorer(ScorerConfig(name=name, params=params), VerifierWorker(1.0)).score(sample)
