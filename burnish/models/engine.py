"""What a sampling engine is: requests in, completions out as they finish, with the logprob of every drawn token.

Three engines exist: `hf` runs wherever torch runs, `vllm` needs its own image, `endpoint` asks a server that has one of
them; stages know only this interface.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.records import FinishReason
from burnish.contracts.sampling import RolloutConfig

LOGPROBS_MODE = "processed"


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to draw."""

    request_id: str
    input_ids: list[int]
    seed: int
    """The tokens depend on this seed and the prompt alone, not on what else is in the batch."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One drawn completion."""

    request_id: str
    response_ids: list[int]
    """[R], the end-of-sequence token included when it was drawn."""
    logprobs: list[float]
    """[R] log softmax(logits / temperature) of each drawn token."""
    finish_reason: FinishReason
    """`abort`: a logprob was missing or not finite; nothing of the completion may be trained on."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Truncated sampling is refused: the trainer's logprobs would be of another distribution."""

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.top_p != 1.0:
            raise ConfigError(f"rollout.top_p is {self.top_p}: truncated sampling biases the importance ratio; use 1.0")
        if self.top_k != 0:
            raise ConfigError(f"rollout.top_k is {self.top_k}: truncated sampling biases the importance ratio; use 0")


class Engine(Protocol):
    """Draws completions with one policy."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, in the order in which they finish."""
        ...

    def score(self, input_ids: list[int], response_ids: list[int]) -> list[float]:
        """[R] log softmax(logits), at temperature 1, of each response token after the prompt."""
        ...


def open_engine(
    folder: Path,
    *,
    model: ModelConfig,
    rollout: RolloutConfig,
    device: torch.device,
    max_length: int,
    digest: str = "",
    label: str = "",
) -> Engine:
    """The engine that `rollout.engine` names, with the policy in `folder`.

    `max_length` bounds prompt plus completion, in tokens. A server needs nothing of `folder`: `digest` is that of the
    policy's manifest, and `label` tells people who asks. Raises ConfigError when the engine is not
    installed, StageError when a server does not give it.
    """
    if rollout.engine == "endpoint":
        from burnish.models.endpoint_engine import EndpointEngine

        return EndpointEngine(rollout.endpoint, policy=digest, label=label, max_length=max_length)
    if rollout.engine == "vllm":
        from burnish.models.vllm_engine import VllmEngine

        return VllmEngine(folder, model=model, rollout=rollout, device=device, max_length=max_length)
    from burnish.models.hf_engine import HfEngine
    from burnish.models.load import load_policy

    # A GPU samples in the compute type; on a CPU bfloat16 is slower than float32 and less exact.
    dtype = torch.bfloat16 if device.type == "cuda" and model.dtype == "bfloat16" else torch.float32
    policy = load_policy(
        folder,
        dtype=dtype,
        device=device,
        attention=model.attention,
        trust_remote_code=model.trust_remote_code,
        merge=model.lora.serve == "merged",
    )
    return HfEngine(policy.model, policy.eos_token_ids, batch_size=rollout.batch_size)
