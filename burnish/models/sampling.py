"""From prompts to Rollout rows through any engine: ids, seeds and fields are the same for training and evaluation.

Every use of a prompt is a group of its own, and each sample has a seed derived from its id.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from burnish.contracts.records import Prompt, Rollout
from burnish.models.chat import render_prompt
from burnish.models.engine import LOGPROBS_MODE, Completion, Engine, Request, Sampling


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """One completion to draw, and what it belongs to."""

    request: Request
    """Its request_id is the sample's id."""
    group_id: str
    prompt: Prompt


def plan_samples(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], samples_per_prompt: int, *, seed: int, prefix: str
) -> list[PlannedSample]:
    """`samples_per_prompt` samples for every element of `prompts`; a prompt that comes twice makes two groups.

    Group ids are `<prefix>-g<index in prompts>`, sample ids `<group id>-s<index in the group>`.
    """
    planned = []
    for use, prompt in enumerate(prompts):
        input_ids = render_prompt(tokenizer, prompt)
        group_id = f"{prefix}-g{use}"
        for index in range(samples_per_prompt):
            sample_id = f"{group_id}-s{index}"
            planned.append(PlannedSample(Request(sample_id, input_ids, _seed(seed, sample_id)), group_id, prompt))
    return planned


def sample_prompts(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[PlannedSample],
    sampling: Sampling,
    *,
    policy_version: int,
) -> Iterator[Rollout]:
    """Draw `samples`; rows come in the order in which they finish.

    Aborted samples are left out: they are what is missing between len(samples) and the number of rows.
    """
    by_id = {sample.request.request_id: sample for sample in samples}
    for completion in engine.generate([sample.request for sample in samples], sampling):
        if completion.finish_reason != "abort":
            yield _rollout(tokenizer, by_id[completion.request_id], completion, sampling, policy_version)


def _rollout(
    tokenizer: PreTrainedTokenizerBase,
    sample: PlannedSample,
    completion: Completion,
    sampling: Sampling,
    policy_version: int,
) -> Rollout:
    # A completion that stopped ends with an end-of-sequence token, which is no part of the text.
    shown = completion.response_ids[:-1] if completion.finish_reason == "stop" else completion.response_ids
    return Rollout(
        sample_id=completion.request_id,
        episode_id=completion.request_id,
        turn=0,
        group_id=sample.group_id,
        prompt_id=sample.prompt.prompt_id,
        task=sample.prompt.task,
        policy_version=policy_version,
        input_ids=sample.request.input_ids,
        response_ids=completion.response_ids,
        loss_mask=[1] * len(completion.response_ids),
        rollout_logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sample.request.seed,
        logprobs_mode=LOGPROBS_MODE,
        prompt_text=str(tokenizer.decode(sample.request.input_ids)),
        text=str(tokenizer.decode(shown)),
    )


def _seed(seed: int, sample_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample_id}".encode()).digest()[:8], "big") >> 1
