"""A pod that runs `burnish doctor --cluster` where stages run, with their settings, secrets and account.

From there the bucket, the sandbox and MLflow have the addresses that stages know them by.
"""

import argparse
from typing import Any

from burnish.cli.compile import placement_of
from burnish.cli.kfp_client import TOKEN_FILE_VARIABLE
from burnish.contracts.config import RunConfig
from pipelines.placement import ROLLOUT_SECRET, SANDBOX_SECRET, SETTINGS_CONFIG_MAP, STORE_SECRET

_TOKEN_FOLDER = "/var/run/secrets/kubeflow/pipelines"
# KFP's own label of stages, by which the sandbox's NetworkPolicy lets them in.
_STAGE_LABEL = {"pipelines.kubeflow.org/v2_component": "true"}


def doctor_pod(given: argparse.Namespace, config: RunConfig) -> dict[str, Any]:
    """The manifest, for `kubectl create`. The placement file stays behind: nodes are better checked from outside."""
    placement = placement_of(given, config)
    asked = placement.of("validate")
    arguments = ["python3", "-m", "burnish.cli.main", "doctor", "--cluster", *_overrides(config)]
    arguments += ["--cpu"] if given.cpu else []
    arguments += [f"--namespace={given.namespace}"] if given.namespace else []
    env: list[dict[str, str]] = [{"name": "HOME", "value": "/tmp"}, {"name": "BURNISH_CACHE", "value": "/tmp/cache"}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]
    if given.host:
        env += [{"name": "KFP_HOST", "value": given.host}]
        env += [{"name": TOKEN_FILE_VARIABLE, "value": f"{_TOKEN_FOLDER}/token"}]
        mounts.append({"name": "kfp-token", "mountPath": _TOKEN_FOLDER, "readOnly": True})
        token = {"path": "token", "audience": "pipelines.kubeflow.org", "expirationSeconds": 7200}
        volumes.append({"name": "kfp-token", "projected": {"sources": [{"serviceAccountToken": token}]}})
    container = {
        "name": "doctor",
        "image": placement.image("validate"),
        "imagePullPolicy": asked.pull_policy,
        "command": arguments,
        "envFrom": [
            {"configMapRef": {"name": SETTINGS_CONFIG_MAP, "optional": True}},
            {"secretRef": {"name": STORE_SECRET, "optional": True}},
            {"secretRef": {"name": SANDBOX_SECRET, "optional": True}},
            {"secretRef": {"name": ROLLOUT_SECRET, "optional": True}},
        ],
        "env": env,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": given.service_account or ("default-editor" if given.namespace else "pipeline-runner"),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }
    if asked.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in asked.pull_secrets]
    metadata: dict[str, Any] = {"generateName": "burnish-doctor-", "labels": _STAGE_LABEL}
    if given.namespace:
        metadata["namespace"] = given.namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _overrides(config: RunConfig) -> list[str]:
    """What the checks look at: which sandbox there is, and which rollout server."""
    execute = config.execute.model_dump(exclude_defaults=True)
    named = ("backend", "service_url", "runtime", "namespace")
    given = [f"execute.{name}={execute[name]}" for name in named if name in execute]
    if config.rollout.engine == "endpoint":
        given += ["rollout.engine=endpoint", f"rollout.endpoint.url={config.rollout.endpoint.url}"]
    return given
