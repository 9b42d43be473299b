"""What a warm rollout server is started with; the chart's values and the options of `burnish serve` end up here."""

from typing import Literal

from pydantic import Field

from burnish.contracts.section import Section


class ServeSettings(Section):
    engine: Literal["hf", "vllm"] = "vllm"
    """What draws: vLLM, or transformers where vLLM is not installed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it draws; auto: a GPU if there is one."""
    threads: int = Field(0, ge=0)
    """CPU threads of the engine; 0: one per core."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute type on a GPU; a CPU always computes in float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention of the hf engine."""
    max_length: int = Field(4096, ge=2)
    """Longest prompt with completion, in tokens; memory is set aside for it."""
    batch_size: int = Field(64, ge=1)
    """Completions that the hf engine draws at once."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    lease_s: float = Field(60.0, gt=0)
    """Seconds after which a client that was not heard of no longer holds its policy."""
    load_s: float = Field(1800.0, gt=0)
    """Seconds that an engine may take to load a policy before another engine is tried."""
    drain_s: float = Field(45.0, ge=0)
    """Seconds that completions under way get to finish when the server is told to stop."""
