"""A sandbox of the cluster's own (agent-sandbox, kubernetes-sigs): one resource a stage, with the service inside.

The resource is deleted when the stage ends, and by its controller when the stage dies and no longer renews its time.
Tested against a stand-in for the API server only; no cluster with the controller has been tried.
"""

import secrets
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from burnish.contracts.errors import StageError
from burnish.contracts.execution import ExecuteConfig
from burnish.rewards.backends.docker import default_image
from burnish.rewards.backends.service import ServiceBackend
from sandbox.jobs import Job
from sandbox.verdicts import Result

GROUP, PLURAL = "agents.x-k8s.io", "sandboxes"
PORT = 8000
_LIFETIME = timedelta(hours=1)
_RENEW_S = 600.0


class KubernetesBackend:
    """Raises StageError where agent-sandbox is not installed, may not be used, or gives no sandbox in time."""

    def __init__(self, config: ExecuteConfig, ready_s: float = 300.0) -> None:
        from kubernetes import client
        from kubernetes import config as credentials
        from kubernetes.client.exceptions import ApiException

        try:
            credentials.load_incluster_config()
            own_namespace = _own_namespace()
        except credentials.ConfigException:
            own_namespace = "default"
            try:
                credentials.load_kube_config()
            except credentials.ConfigException as error:
                raise StageError(
                    f"execute.backend=kubernetes: no cluster is configured: {error}; set KUBECONFIG"
                ) from None
        self._refused = ApiException
        self._api = client.CustomObjectsApi()
        groups, _, headers = client.ApisApi().get_api_versions_with_http_info()
        self._version = _served_version(groups)
        self._behind = _behind(headers)
        self._namespace = config.namespace or own_namespace
        self._name = f"burnish-{secrets.token_hex(6)}"
        self._renewed = time.monotonic()
        token = secrets.token_urlsafe(32)
        self._call("create", body=self._resource(config, token))
        try:
            self._service = ServiceBackend(self._address(ready_s), token, lanes=2)
        except BaseException:
            self._delete()
            raise
        self.capacity = self._service.capacity

    def submit(self, job: Job) -> None:
        self._service.submit(job)

    def collect(self) -> list[tuple[str, Result]]:
        if time.monotonic() - self._renewed > _RENEW_S:
            self._call("patch", name=self._name, body={"spec": {"shutdownTime": self._shutdown_time()}})
            self._renewed = time.monotonic()
        return self._service.collect()

    def close(self) -> None:
        try:
            self._service.close()
        finally:
            self._delete()

    def _address(self, ready_s: float) -> str:
        """Where the service is, once it is ready."""
        deadline = time.monotonic() + ready_s
        said = "nothing"
        while time.monotonic() < deadline:
            status = self._call("get", name=self._name).get("status", {})
            for condition in status.get("conditions", []):
                if condition["type"] == "Ready":
                    said = condition.get("message") or condition.get("reason", said)
                    if condition["status"] == "True" and status.get("serviceFQDN"):
                        return f"http://{status['serviceFQDN']}:{PORT}"
            time.sleep(1.0)
        raise StageError(
            f"execute.backend=kubernetes: sandbox {self._namespace}/{self._name} is not ready after {ready_s:.0f} s "
            f"(it says: {said}); see `kubectl describe sandbox` for why"
        )

    def _delete(self) -> None:
        try:
            self._api.delete_namespaced_custom_object(GROUP, self._version, self._namespace, PLURAL, self._name)
        except self._refused as error:
            if error.status != 404:
                raise

    def _shutdown_time(self) -> str:
        # The controller compares it with the cluster's clock.
        return (datetime.now(UTC) + self._behind + _LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        method = getattr(self._api, f"{verb}_namespaced_custom_object")
        try:
            found: dict[str, Any] = method(GROUP, self._version, self._namespace, PLURAL, **arguments)
        except self._refused as error:
            raise StageError(
                f"execute.backend=kubernetes: cannot {verb} {PLURAL}.{GROUP} in namespace {self._namespace!r}: "
                f"{error.status} {error.reason}; the stage's service account needs create, get, patch and delete"
            ) from None
        return found

    def _resource(self, config: ExecuteConfig, token: str) -> dict[str, Any]:
        """The custom resource; `service` asks newer versions for what older ones always make."""
        memory = f"{config.workers * 2 * config.memory_mb + 512}Mi"
        arguments = ["--host=0.0.0.0", f"--port={PORT}", f"--workers={config.workers}"]
        arguments += [f"--preload={module}" for module in config.preload]
        container = {
            "name": "sandbox",
            "image": config.image or default_image(),
            "command": ["python3", "-m", "sandbox", "serve"],
            "args": arguments + (["--allow-degraded"] if config.allow_degraded else []),
            "env": [{"name": "BURNISH_SANDBOX_TOKEN", "value": token}],
            "ports": [{"containerPort": PORT}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT}, "periodSeconds": 2},
            "resources": {"limits": {"memory": memory}, "requests": {"cpu": str(config.workers), "memory": memory}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        pod: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
        }
        if config.runtime:
            pod["runtimeClassName"] = config.runtime
        labels = {"app.kubernetes.io/name": "burnish-sandbox", "app.kubernetes.io/managed-by": "burnish"}
        return {
            "apiVersion": f"{GROUP}/{self._version}",
            "kind": "Sandbox",
            "metadata": {"name": self._name, "namespace": self._namespace, "labels": labels},
            "spec": {
                "podTemplate": {"metadata": {"labels": labels}, "spec": pod},
                "shutdownTime": self._shutdown_time(),
                "shutdownPolicy": "Delete",
                "service": True,
            },
        }


def _served_version(groups: Any) -> str:
    for group in groups.groups:
        if group.name == GROUP:
            return str(group.preferred_version.version)
    raise StageError(
        f"execute.backend=kubernetes: this cluster does not serve {GROUP}; install agent-sandbox "
        "(https://agent-sandbox.sigs.k8s.io), or use execute.backend=service"
    )


def _own_namespace() -> str:
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
        return file.read().strip()


def _behind(headers: Any) -> timedelta:
    """By how much our clock is behind the API server's."""
    try:
        return parsedate_to_datetime(headers["Date"]) - datetime.now(UTC)
    except (KeyError, TypeError, ValueError):
        return timedelta()
