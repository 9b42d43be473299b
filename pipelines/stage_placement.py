"""What one stage asks of the cluster, and what every stage asks by default: one table, nowhere else.

All of it ends up in the IR, so it holds for every run of a compiled pipeline.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from burnish.contracts.cost import CPU
from burnish.contracts.section import Section

Cpu = Annotated[str, Field(pattern=r"^([0-9]*\.)?[0-9]+m?$")]
# What both KFP's compiler and Kubernetes take: the driver crashes on what Kubernetes cannot parse.
Size = Annotated[str, Field(pattern=r"^[0-9]+([EPTGM]i?|Ki)?$")]

GPU_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")
"""Labels of nodes that say which GPU they have."""


class Toleration(Section):
    """A taint of nodes that a pod may run on all the same."""

    key: str | None = None
    """Key of the taint. Empty: any, which needs `operator: Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists` takes any value."""
    value: str | None = None
    """Value of the taint, for `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Empty: any."""
    toleration_seconds: int | None = Field(None, ge=0)
    """`NoExecute` only: seconds until eviction. Empty: never."""

    @model_validator(mode="after")
    def _matches_something(self) -> "Toleration":
        if self.operator == "Exists" and self.value is not None:
            raise ValueError(f"operator Exists takes any value, so value {self.value!r} must go")
        if self.operator == "Equal" and not self.key:
            raise ValueError("operator Equal needs a key; use Exists for any taint")
        return self


class StagePlacement(Section):
    """A pod's resources, place and limits."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    cpu: Cpu = "1"
    """CPUs asked for; there is no limit."""
    memory: Size = "2Gi"
    """Memory, asked for and limit alike, so that a stage cannot be evicted for its neighbours."""
    gpus: int = Field(0, ge=0)
    """Number of GPUs. sft and update train with one process on each."""
    gpu_type: str = Field("nvidia.com/gpu", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    """Name of the resource, such as nvidia.com/gpu, amd.com/gpu or nvidia.com/mig-3g.40gb."""
    shared_memory: Size | None = None
    """Size of /dev/shm, which counts as memory once it is used. Empty: the container runtime's 64 MB."""
    scratch: Size | None = None
    """Limit of an emptyDir at /tmp: work folders and the cache of blobs. Empty: the container's own layer, unlimited.
    KFP cannot ask for ephemeral storage."""
    cache_claim: str | None = None
    """PersistentVolumeClaim for the cache of blobs, which the pod's user must be able to write to; ReadWriteMany unless
    all pods share a node. Empty: a cache in /tmp, gone with the pod."""
    cache_gb: float | None = Field(None, ge=0)
    """Gigabytes that the cache keeps to. Empty: 20."""
    timeout_s: int = Field(86_400, ge=0)
    """Seconds after which an attempt is stopped, from when its node was found. 0: none."""
    retries: int = Field(2, ge=0)
    """Further attempts after a failure. Finished work is never repeated."""
    queue: str | None = Field(None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    """Kueue LocalQueue that the pod waits in."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the pod."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the pod."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that the node must have."""
    tolerations: list[Toleration] = Field(default_factory=list)
    """Taints that the node may have."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    pull_secrets: list[str] = Field(default_factory=list)
    """Secrets for the image registry."""
    run_as_non_root: bool = True
    """Demand a user other than root, as the restricted level of Pod Security does. Off: say nothing, for a
    KFP before 2.16, which does not know the field."""
    run_as_user: int | None = Field(None, ge=1)
    """User id. Empty: the image's, 65532."""
    run_as_group: int | None = Field(None, ge=0)
    """Group id. Empty: the image's, 65532."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables. No secrets: they can be read in KFP's UI."""
    secrets: dict[str, list[str]] = Field(default_factory=dict)
    """Further environment variables from secrets, such as `{hugging-face: [HF_TOKEN]}`: the keys that become variables
    of the same name."""

    @property
    def resources(self) -> dict[str, float]:
        """What the pod is paid for: CPU cores, and GPUs by the name that prices know them by."""
        cores = float(self.cpu[:-1]) / 1000 if self.cpu.endswith("m") else float(self.cpu)
        if not self.gpus:
            return {CPU: cores}
        kind = next((self.node_selector[label] for label in GPU_LABELS if label in self.node_selector), self.gpu_type)
        return {CPU: cores, kind: float(self.gpus)}


_HOUR = 3600

PLACEMENT: dict[str, StagePlacement] = {
    "validate": StagePlacement(timeout_s=_HOUR),
    "sft": StagePlacement(cpu="4", memory="32Gi", gpus=1, shared_memory="8Gi"),
    "rollout": StagePlacement(cpu="4", memory="32Gi", gpus=1, shared_memory="8Gi"),
    "execute": StagePlacement(cpu="2", memory="4Gi"),
    "reward": StagePlacement(cpu="2", memory="4Gi"),
    "logprob": StagePlacement(cpu="4", memory="32Gi", gpus=1, shared_memory="8Gi"),
    "update": StagePlacement(cpu="4", memory="48Gi", gpus=1, shared_memory="8Gi"),
    "evaluate": StagePlacement(cpu="4", memory="32Gi", gpus=1, shared_memory="8Gi"),
    "report": StagePlacement(timeout_s=_HOUR),
}


def merged(*layers: StagePlacement) -> StagePlacement:
    """What the layers say together: a later one wins, and mappings are joined key by key."""
    values: dict[str, object] = {}
    for layer in layers:
        for name in layer.model_fields_set:
            value, before = getattr(layer, name), values.get(name)
            values[name] = {**before, **value} if isinstance(before, dict) else value
    return StagePlacement.model_validate(values)
