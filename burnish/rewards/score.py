"""Rewards of many samples: every scorer's number, what they come to together, and the flags.

Shared by the stages reward and evaluate.
"""

from collections.abc import Iterable, Iterator, Mapping

from burnish.contracts.config import RewardConfig
from burnish.contracts.errors import ContractError
from burnish.contracts.records import Execution, Prompt, Reward, Rollout
from burnish.maths.overlong import soft_overlong_penalty
from burnish.rewards.format import FormatScorer
from burnish.rewards.fusion import fuse
from burnish.rewards.length import generated_tokens
from burnish.rewards.scorer import Sample, default_scorers, make_scorer
from burnish.rewards.worker import VerifierWorker

OVERLONG = "overlong"
# Components that say whether an answer is right; the others say how it looks.
CORRECTNESS = ("exact", "math", "reasoning_gym", "code")


def score(
    rollouts: Iterable[Rollout],
    executions_by_id: Mapping[str, Execution],
    prompts_by_id: Mapping[str, Prompt],
    config: RewardConfig,
    max_new_tokens: int,
) -> Iterator[Reward]:
    """One Reward a rollout, in the same order. `max_new_tokens` is the limit of the overlong penalty.

    With no scorers configured each prompt is scored by the one that fits its verifier. Aborted samples have no
    reward. Raises ConfigError, ContractError for a rollout whose prompt is missing, StageError.
    """
    # Demonstrations are imitated, not scored; those from a file have no verifier.
    kinds = sorted({str(prompt.verifier.get("kind")) for prompt in prompts_by_id.values() if prompt.split != "sft"})
    scorers = config.scorers or default_scorers(kinds)
    with VerifierWorker(config.verifier_timeout_s) as worker:
        made = {scorer.name: make_scorer(scorer, worker) for scorer in scorers}
        for rollout in rollouts:
            prompt = prompts_by_id.get(rollout.prompt_id)
            if prompt is None:
                raise ContractError(f"rollout {rollout.sample_id}: prompt {rollout.prompt_id} is not among the prompts")
            sample = Sample(rollout, prompt, executions_by_id.get(rollout.sample_id))
            flags = _flags(sample, made.get("format"))
            if rollout.finish_reason == "abort":
                yield Reward(rollout.sample_id, dict.fromkeys(made), None, flags)
                continue
            components = {name: scorer.score(sample) for name, scorer in made.items()}
            penalty = 0.0
            if config.overlong_buffer:
                buffer = min(config.overlong_buffer, max_new_tokens)
                penalty = soft_overlong_penalty(generated_tokens(sample), max_new_tokens, buffer)
                components[OVERLONG] = penalty
            reward = fuse(components, scorers, penalty=penalty, clip=config.clip)
            yield Reward(rollout.sample_id, components, reward, flags)


def _flags(sample: Sample, format_scorer: object) -> list[str]:
    flags = []
    if sample.rollout.finish_reason == "length":
        flags.append("truncated")
    if sample.rollout.finish_reason == "abort":
        flags.append("aborted")
    if isinstance(format_scorer, FormatScorer) and format_scorer.malformed(sample):
        flags.append("malformed")
    if sample.execution is not None and sample.execution.degraded:
        flags.append("degraded")
    return flags


def solved(reward: Reward) -> bool | None:
    """Whether the sample's answer was right by its verifier; None when no verifier had a say."""
    found = [score for name in CORRECTNESS if (score := reward.components.get(name)) is not None]
    return None if not found else min(found) >= 1.0
