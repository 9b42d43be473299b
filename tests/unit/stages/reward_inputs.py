"""Prompts and rollouts for tests of the stages execute and reward."""

from typing import Any

from burnish.contracts.records import Prompt, Rollout


def prompt(prompt_id: str, **verifier: Any) -> Prompt:
    return Prompt(prompt_id, prompt_id, "train", [{"role": "user", "content": prompt_id}], None, verifier)


def rollout(text: str, sample_id: str, prompt_id: str, group: str = "g", finish: str = "stop") -> Rollout:
    return Rollout(
        sample_id, sample_id, 0, group, prompt_id, prompt_id, 0, [1], [2, 3], [1, 1], [-0.5, -0.5], finish,  # type: ignore[arg-type]
        1.0, 1.0, 0, 0, "processed", "", text,
    )  # fmt: skip
