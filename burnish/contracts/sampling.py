"""Settings of sampling: the engine of stages that draw completions, and the warm rollout server they may ask."""

from typing import Literal

from pydantic import Field, model_validator

from burnish.contracts.section import Section

ROLLOUT_TOKEN = "BURNISH_ROLLOUT_TOKEN"
"""Environment variable with the rollout server's bearer token, for the server and its clients."""


class EndpointConfig(Section):
    url: str = ""
    """Address of the server, like http://burnish-rollout-server:8000. A token is read from BURNISH_ROLLOUT_TOKEN."""
    concurrency: int = Field(256, ge=1, le=1024)
    """Completions asked for at a time by one stage or shard."""
    patience_s: float = Field(1800.0, gt=0)
    """Seconds without one completion, because the server is away, is loading, or draws for another policy, after which
    the stage fails."""


class RolloutConfig(Section):
    engine: Literal["hf", "vllm", "endpoint"] = "hf"
    """`hf` runs wherever torch runs; `vllm` needs the vLLM image or package; `endpoint` asks a warm rollout server."""
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)
    """`endpoint` only: the server."""
    prompts_per_round: int = Field(32, ge=1)
    """Prompts (groups) sampled in a round."""
    samples_per_prompt: int = Field(8, ge=1)
    """Group size: completions of each prompt."""
    shards: int = Field(1, ge=1)
    """Pods that share a round's prompts: each loads the policy and draws completions of its part. The completions do
    not depend on how many there are, as far as the engine's do not on what else is in the batch."""
    max_new_tokens: int = Field(64, ge=1)
    """Longest completion, in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the trainer divides its logits by the same number."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling. Anything below 1 is refused: truncated sampling biases the importance ratio."""
    top_k: int = Field(0, ge=0)
    """Top-k sampling, 0 for off. Anything else is refused, as for top_p."""
    batch_size: int = Field(64, ge=1)
    """Sequences decoded at once by the `hf` engine; a finished one makes room for the next."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of GPU memory that vLLM may take."""
    probe_tolerance: float | None = Field(None, ge=0)
    """Largest mean difference, in nats a token, between the sampler's logprobs of the policy's probe and the trainer's
    own; beyond it the sampler does not run the policy's weights and the stage fails. 0: not checked. Empty: 0.05 in
    float32, 0.15 in bfloat16."""

    @model_validator(mode="after")
    def _every_shard_has_prompts(self) -> "RolloutConfig":
        if self.shards > self.prompts_per_round:
            raise ValueError(
                f"shards is {self.shards}, and prompts_per_round is {self.prompts_per_round}: "
                "a prompt's group stays in one shard, so use at most as many"
            )
        return self

    @model_validator(mode="after")
    def _endpoint_has_an_address(self) -> "RolloutConfig":
        url = self.endpoint.url
        if (self.engine == "endpoint") != bool(url):
            raise ValueError(
                f"engine is {self.engine!r} and endpoint.url is {url!r}: "
                "engine=endpoint needs an address, and no other engine has one"
            )
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"endpoint.url is {url!r}; it must be like http://burnish-rollout-server:8000")
        return self
