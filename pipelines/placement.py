"""Where stages run on a cluster: which image, and by which calls of KFP a task gets what its stage asks for.

A YAML file may say it (`burnish compile --placement FILE`): for every stage, for those with GPUs, for a single one.
"""

import difflib
import json
from pathlib import Path
from typing import Annotated

from kfp import kubernetes
from kfp.dsl import PipelineTask
from pydantic import Field, model_validator

import burnish
from burnish.contracts.cost import RESOURCES_VARIABLE
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import load_section
from burnish.contracts.sampling import ROLLOUT_TOKEN
from burnish.contracts.section import Section
from burnish.contracts.stages import STAGES
from pipelines.stage_placement import PLACEMENT, StagePlacement, merged

# The chart makes the ConfigMap; secrets are made by hand, and the chart only names them.
SETTINGS_CONFIG_MAP = "burnish"
SETTINGS = ("BURNISH_STORE", "BURNISH_S3_ENDPOINT", "BURNISH_S3_REGION", "MLFLOW_TRACKING_URI")
STORE_SECRET = "burnish-store"
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SANDBOX_SECRET = "burnish-sandbox"
SANDBOX_KEYS = ("BURNISH_SANDBOX_TOKEN",)
SANDBOX_STAGES = ("execute", "evaluate")
"""Those that run model-written code, perhaps by the sandbox service."""
ROLLOUT_SECRET = "burnish-rollout"
ROLLOUT_KEYS = (ROLLOUT_TOKEN,)
ROLLOUT_STAGES = ("rollout", "evaluate")
"""Those that draw completions, perhaps from the warm rollout server."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RUN_LABEL = "pipeline/runid"
"""KFP's own label of every pod of a run."""
CACHE_FOLDER = "/var/cache/burnish"
TRAINING_STAGES = ("sft", "update")
"""Those that `runtime.processes` is about."""

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


_ENDLESS_S = 30 * 86_400
_PAUSES_S = 86_400
"""Between attempts, and until a node is found."""


class ClusterPlacement(Section):
    """Places tasks on a cluster; a `Place` for `build_pipeline`."""

    registry: str = "burnish"
    """Prefix of every image, e.g. registry.example.com/team/burnish."""
    tag: str = burnish.__version__
    """Immutable tag of every image."""
    digests: dict[str, Digest] = Field(default_factory=dict)
    """Digest of a stage's image, by stage; it then counts instead of the tag."""
    gpus: bool = True
    """Off for a cluster without GPUs: the stages then compute on CPU."""
    every_stage: StagePlacement = StagePlacement()
    """What differs from the defaults for all stages."""
    gpu_stages: StagePlacement = StagePlacement()
    """What differs for the stages that have a GPU."""
    stages: dict[str, StagePlacement] = Field(default_factory=dict)
    """What differs for one stage, by stage; it has the last word."""

    @model_validator(mode="after")
    def _fits_the_stages(self) -> "ClusterPlacement":
        for name in (*self.digests, *self.stages):
            if name not in STAGES:
                nearest = difflib.get_close_matches(name, STAGES, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"stages are {', '.join(STAGES)}"
                raise ValueError(f"{name!r} is no stage; {hint}")
        for name, stage in STAGES.items():
            if self.of(name).gpus and not stage.torch:
                raise ValueError(f"{name} is given GPUs, but has no torch to use them; give them to single stages")
        return self

    def image(self, stage: str) -> str:
        """The image of `stage`, by digest where one is known."""
        digest = self.digests.get(stage)
        return f"{self.registry}/{stage}@{digest}" if digest else f"{self.registry}/{stage}:{self.tag}"

    def of(self, stage: str) -> StagePlacement:
        """All that `stage` asks for."""
        own = self._own(stage)
        placement = merged(PLACEMENT[stage], self.every_stage, own)
        if not self.gpus:
            return placement.model_copy(update={"gpus": 0})
        if placement.gpus:
            return merged(PLACEMENT[stage], self.every_stage, self.gpu_stages, own)
        return placement

    def for_processes(self, processes: int) -> "ClusterPlacement":
        """With a GPU for each of `runtime.processes`; 0 is as many processes as there are GPUs.

        Raises ConfigError when another number of GPUs was asked for.
        """
        stages = dict(self.stages)
        for stage in TRAINING_STAGES:
            gpus = self.of(stage).gpus
            if not processes or not gpus or gpus == processes:
                continue
            if any("gpus" in layer.model_fields_set for layer in (self.every_stage, self.gpu_stages, self._own(stage))):
                raise ConfigError(
                    f"runtime.processes is {processes}, but {stage} is given {gpus} GPUs; make them equal, or "
                    "leave runtime.processes at 0 for one process on each GPU"
                )
            stages[stage] = merged(self._own(stage), StagePlacement(gpus=processes))
        return self.model_copy(update={"stages": stages})

    def _own(self, stage: str) -> StagePlacement:
        return self.stages.get(stage, StagePlacement())

    def __call__(self, task: PipelineTask, stage: str) -> PipelineTask:
        """Give `task`, which is one of `stage`, what it asks for."""
        asked = self.of(stage)
        task.set_container_image(self.image(stage))
        _give_resources(task, asked)
        _give_limits(task, asked)
        _give_place(task, asked)
        _give_volumes(task, asked)
        _give_environment(task, asked, stage, self.image(stage))
        return task


def load_placement(path: Path | None) -> ClusterPlacement:
    """The placement in the YAML file `path`; None: the defaults. Raises ConfigError."""
    return load_section(path, ClusterPlacement) if path else ClusterPlacement()


def _give_resources(task: PipelineTask, asked: StagePlacement) -> None:
    task.set_cpu_request(asked.cpu).set_memory_request(asked.memory).set_memory_limit(asked.memory)
    if asked.gpus:
        task.set_accelerator_type(asked.gpu_type).set_accelerator_limit(asked.gpus)


def _give_limits(task: PipelineTask, asked: StagePlacement) -> None:
    # Argo counts the longest duration from the start of the first attempt, and ends later attempts when it is over.
    attempts = (asked.retries + 1) * (asked.timeout_s or _ENDLESS_S) + _PAUSES_S
    task.set_retry(asked.retries, backoff_duration="10s", backoff_factor=2.0, backoff_max_duration=f"{attempts}s")
    # Burnish remembers results by content and code; KFP's cache knows neither the code nor a collected blob.
    task.set_caching_options(False)
    if asked.timeout_s:
        kubernetes.set_timeout(task, asked.timeout_s)
    kubernetes.set_image_pull_policy(task, asked.pull_policy)
    if asked.pull_secrets:
        kubernetes.set_image_pull_secrets(task, asked.pull_secrets)
    # KFP drops capabilities and sets seccomp itself, but leaves the user to the image unless it is told.
    user = {
        "run_as_user": asked.run_as_user,
        "run_as_group": asked.run_as_group,
        "run_as_non_root": asked.run_as_non_root or None,
    }
    if any(value is not None for value in user.values()):
        kubernetes.set_security_context(task, **user)


def _give_place(task: PipelineTask, asked: StagePlacement) -> None:
    labels = asked.labels | ({QUEUE_LABEL: asked.queue} if asked.queue else {})
    for key, value in labels.items():
        kubernetes.add_pod_label(task, key, value)
    for key, value in asked.annotations.items():
        kubernetes.add_pod_annotation(task, key, value)
    for key, value in asked.node_selector.items():
        kubernetes.add_node_selector(task, key, value)
    for toleration in asked.tolerations:
        kubernetes.add_toleration(task, **toleration.model_dump())


def _give_volumes(task: PipelineTask, asked: StagePlacement) -> None:
    if asked.shared_memory:
        kubernetes.empty_dir_mount(task, "shared-memory", "/dev/shm", medium="Memory", size_limit=asked.shared_memory)
    if asked.scratch:
        kubernetes.empty_dir_mount(task, "scratch", "/tmp", size_limit=asked.scratch)
    if asked.cache_claim:
        kubernetes.mount_pvc(task, asked.cache_claim, CACHE_FOLDER)
        task.set_env_variable("BURNISH_CACHE", CACHE_FOLDER)
    if asked.cache_gb is not None:
        task.set_env_variable("BURNISH_CACHE_GB", f"{asked.cache_gb:g}")


def _give_environment(task: PipelineTask, asked: StagePlacement, stage: str, image: str) -> None:
    # The commit is in the image already, as BURNISH_GIT_SHA.
    task.set_env_variable("BURNISH_IMAGE", image)
    task.set_env_variable(RESOURCES_VARIABLE, json.dumps(asked.resources))
    for name, value in asked.env.items():
        task.set_env_variable(name, value)
    kubernetes.use_field_path_as_env(task, "KFP_RUN_ID", f"metadata.labels['{RUN_LABEL}']")
    kubernetes.use_config_map_as_env(task, SETTINGS_CONFIG_MAP, {name: name for name in SETTINGS}, optional=True)
    kubernetes.use_secret_as_env(task, STORE_SECRET, {name: name for name in STORE_KEYS})
    if stage in SANDBOX_STAGES:
        kubernetes.use_secret_as_env(task, SANDBOX_SECRET, {name: name for name in SANDBOX_KEYS}, optional=True)
    if stage in ROLLOUT_STAGES:
        kubernetes.use_secret_as_env(task, ROLLOUT_SECRET, {name: name for name in ROLLOUT_KEYS}, optional=True)
    for secret, keys in asked.secrets.items():
        kubernetes.use_secret_as_env(task, secret, {key: key for key in keys})
