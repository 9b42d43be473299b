"""Settings of a warm rollout server, which draws completions for stages that have no engine of their own."""

from pydantic import Field

from burnish.contracts.section import Section


class EndpointConfig(Section):
    url: str = ""
    """Address of the server, like http://burnish-rollout-server:8000. A token is read from BURNISH_ROLLOUT_TOKEN."""
    concurrency: int = Field(256, ge=1, le=1024)
    """Completions asked for at a time by one stage or shard."""
    patience_s: float = Field(1800.0, gt=0)
    """Seconds without one completion, because the server is away, is loading, or draws for another policy, after which
    the stage fails."""
