"""Settings of running model-written code: where, how much at a time, and what one execution may use."""

from typing import Literal

from pydantic import Field, model_validator

from burnish.contracts.section import Section


class ExecuteConfig(Section):
    sharded: bool = True
    """Where `rollout.shards` is above 1: execute in as many pods as well. Off: in one."""
    backend: Literal["pool", "service", "docker", "kubernetes"] = "pool"
    """Where code runs: sandboxes in the stage itself, a sandbox service, a container for each sample, or a sandbox of
    the cluster's (agent-sandbox)."""
    workers: int = Field(2, ge=1)
    """Executions at a time, at best one more than there are cores; for `service`, connections to it."""
    service_url: str = ""
    """`service` only: its address, like http://burnish-sandbox:8000. A token is read from BURNISH_SANDBOX_TOKEN."""
    image: str = ""
    """`docker` and `kubernetes` only: image with the sandbox. Empty: burnish/sandbox of this version."""
    namespace: str = ""
    """`kubernetes` only: where the sandbox is made. Empty: the stage's own namespace."""
    runtime: str = ""
    """`docker`: container runtime; `kubernetes`: RuntimeClass, such as gvisor. Empty: the default one, but gVisor where
    the Docker daemon has it (runsc) and `allow_degraded` is on, as gVisor has no Landlock."""
    preload: list[str] = Field(default_factory=list)
    """Installed modules, such as numpy, that Python programs may import. A service has its own setting for it."""
    timeout_s: float = Field(5.0, gt=0)
    """Wall-clock limit of one execution, in seconds."""
    memory_mb: int = Field(512, ge=32)
    """Address-space limit of one execution."""
    output_kb: int = Field(64, ge=1)
    """Output kept of one execution; more is an `output_limit` verdict."""
    disk_mb: int = Field(16, ge=1)
    """All files of one execution together, where its language or tests need a work directory."""
    processes: int = Field(64, ge=1)
    """Processes and threads of one execution at a time, where the language needs them."""
    compile_s: float = Field(30.0, gt=0)
    """Seconds that a compiler may take; they do not count towards `timeout_s`."""
    enclosure: Literal["none", "bubblewrap", "nsjail"] = "none"
    """`pool` only: a second jail around the sandboxes, where the machine has the program and allows it."""
    allow_degraded: bool = False
    """Run even where the kernel offers no Landlock or seccomp. Every verdict then carries the mark."""

    @model_validator(mode="after")
    def _service_has_an_address(self) -> "ExecuteConfig":
        if (self.backend == "service") != bool(self.service_url):
            raise ValueError(
                f"backend is {self.backend!r} and service_url is {self.service_url!r}: "
                "backend=service needs an address, and no other backend has one"
            )
        if self.service_url and not self.service_url.startswith(("http://", "https://")):
            raise ValueError(f"service_url is {self.service_url!r}; it must be like http://burnish-sandbox:8000")
        return self
