"""From prompts to Rollout rows through any engine: ids, seeds and fields are the same for training and evaluation.

Every use of a prompt is a group of its own, and each sample has a seed derived from its id.
"""

import hashlib
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from burnish.contracts.records import Prompt, Rollout
from burnish.models.chat import render_prompt
from burnish.models.engine import LOGPROBS_MODE, Completion, Engine, Request, Sampling


def sample_prompts(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    samples_per_prompt: int,
    sampling: Sampling,
    seed: int,
    policy_version: int,
    prefix: str,
) -> Iterator[Rollout]:
    """Draw `samples_per_prompt` completions of every prompt; rows come in the order in which they finish.

    Group ids are `<prefix>-g<index of the use>`, sample ids `<group id>-s<index>`. Aborted samples are left out:
    they are the difference between len(prompts) * samples_per_prompt and the rows yielded.
    """
    requests: list[Request] = []
    origin: dict[str, tuple[str, Prompt]] = {}
    for use, prompt in enumerate(prompts):
        input_ids = render_prompt(tokenizer, prompt)
        group_id = f"{prefix}-g{use}"
        for index in range(samples_per_prompt):
            sample_id = f"{group_id}-s{index}"
            origin[sample_id] = group_id, prompt
            requests.append(Request(sample_id, input_ids, _sample_seed(seed, sample_id)))
    by_id = {request.request_id: request for request in requests}
    for completion in engine.generate(requests, sampling):
        if completion.finish_reason != "abort":
            group_id, prompt = origin[completion.request_id]
            request = by_id[completion.request_id]
            yield _rollout(tokenizer, prompt, group_id, request, completion, sampling, policy_version)


def _rollout(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    group_id: str,
    request: Request,
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
        group_id=group_id,
        prompt_id=prompt.prompt_id,
        task=prompt.task,
        policy_version=policy_version,
        input_ids=request.input_ids,
        response_ids=completion.response_ids,
        loss_mask=[1] * len(completion.response_ids),
        rollout_logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=request.seed,
        logprobs_mode=LOGPROBS_MODE,
        prompt_text=tokenizer.decode(request.input_ids),
        text=tokenizer.decode(shown),
    )


def _sample_seed(seed: int, sample_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample_id}".encode()).digest()[:8], "big") >> 1
