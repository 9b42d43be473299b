"""Where each stage runs on a cluster: image, resources, GPU, secrets, retries. One table, nowhere else."""

from dataclasses import dataclass

from kfp import kubernetes
from kfp.dsl import PipelineTask

import burnish


@dataclass(frozen=True)
class Placement:
    """What one stage asks of the cluster."""

    cpu: str
    memory: str
    gpus: int = 0
    retries: int = 2


PLACEMENT: dict[str, Placement] = {
    "validate": Placement(cpu="1", memory="2Gi"),
    "sft": Placement(cpu="4", memory="32Gi", gpus=1),
    "rollout": Placement(cpu="4", memory="32Gi", gpus=1),
    "execute": Placement(cpu="2", memory="4Gi"),
    "reward": Placement(cpu="2", memory="4Gi"),
    "logprob": Placement(cpu="4", memory="32Gi", gpus=1),
    "update": Placement(cpu="4", memory="48Gi", gpus=1),
    "evaluate": Placement(cpu="4", memory="32Gi", gpus=1),
    "report": Placement(cpu="1", memory="2Gi"),
}

# The chart makes the ConfigMap; secrets are made by hand, and the chart only names them.
SETTINGS_CONFIG_MAP = "burnish"
SETTINGS = ("BURNISH_STORE", "BURNISH_S3_ENDPOINT", "BURNISH_S3_REGION", "MLFLOW_TRACKING_URI")
STORE_SECRET = "burnish-store"
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SANDBOX_SECRET = "burnish-sandbox"
SANDBOX_KEYS = ("BURNISH_SANDBOX_TOKEN",)
SANDBOX_STAGES = ("execute", "evaluate")
"""Those that run model-written code, perhaps by the sandbox service."""


@dataclass(frozen=True)
class ClusterPlacement:
    """Places tasks on a cluster; a `Place` for `build_pipeline`."""

    registry: str = "burnish"
    """Prefix of every image, e.g. registry.example.com/team/burnish."""
    tag: str = burnish.__version__
    """Immutable tag of every image."""
    gpus: bool = True
    """Off for a cluster without GPUs: the stages then compute on CPU."""

    def image(self, stage: str) -> str:
        return f"{self.registry}/{stage}:{self.tag}"

    def __call__(self, task: PipelineTask, stage: str) -> PipelineTask:
        placement = PLACEMENT[stage]
        task.set_container_image(self.image(stage))
        task.set_cpu_request(placement.cpu).set_memory_request(placement.memory).set_memory_limit(placement.memory)
        if placement.gpus and self.gpus:
            task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(placement.gpus)
        task.set_retry(placement.retries, backoff_duration="10s", backoff_factor=2.0, backoff_max_duration="300s")
        # Burnish remembers results by content and code; KFP's cache knows neither the code nor a collected blob.
        task.set_caching_options(False)
        kubernetes.use_config_map_as_env(task, SETTINGS_CONFIG_MAP, {name: name for name in SETTINGS}, optional=True)
        kubernetes.use_secret_as_env(task, STORE_SECRET, {name: name for name in STORE_KEYS})
        if stage in SANDBOX_STAGES:
            kubernetes.use_secret_as_env(task, SANDBOX_SECRET, {name: name for name in SANDBOX_KEYS}, optional=True)
        return task
