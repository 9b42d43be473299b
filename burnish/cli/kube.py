"""A cluster as doctor asks it: read a thing, or learn that it is not there, or that nobody lets us look.

Nothing is changed in the cluster, and of a secret only the names of its keys are looked at.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from burnish.contracts.errors import BurnishError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TIMEOUT_S = 10
STANDALONE_NAMESPACE = "kubeflow"


class CannotLook(Exception):
    """The question cannot be answered from here; the message says why."""


def in_a_pod() -> bool:
    """Whether this process runs in a pod."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


class Right(NamedTuple):
    """Something that one may be allowed to do in a namespace."""

    verb: str
    group: str
    resource: str
    name: str | None = None
    """Of the one object; None: any."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}{f' {self.name}' if self.name else ''}"


class Cluster:
    """The cluster of this pod, or of the kubeconfig. Raises CannotLook without one, BurnishError when it is away."""

    def __init__(self, namespace: str | None) -> None:
        from kubernetes import client
        from kubernetes import config as credentials
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        self._refused, self._broken = ApiException, HTTPError
        try:
            if in_a_pod():
                credentials.load_incluster_config()
                own = _NAMESPACE_FILE.read_text("utf-8").strip()
            else:
                credentials.load_kube_config()
                _, active = credentials.list_kube_config_contexts()
                own = active["context"].get("namespace")
        except (credentials.ConfigException, OSError) as error:
            raise CannotLook(
                f"no cluster is configured ({_short(error)}); set KUBECONFIG, or run this in a pod (--pod)"
            ) from None
        self.namespace = namespace or own or STANDALONE_NAMESPACE
        self.core = client.CoreV1Api()
        self.models = client
        try:
            self.version = str(client.VersionApi().get_code(_request_timeout=_TIMEOUT_S).git_version)
        except (ApiException, HTTPError) as error:
            raise BurnishError(f"the Kubernetes API does not answer: {_short(error)}") from None

    def read(self, what: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """What the API answers, None where there is no such thing. `what` names it. Raises CannotLook."""
        try:
            return function(*arguments, **more, _request_timeout=_TIMEOUT_S)
        except self._refused as error:
            if error.status == 404:
                return None
            if error.status in {401, 403}:
                raise CannotLook(f"you may not read {what}") from None
            raise CannotLook(f"{what}: the Kubernetes API answers {error.status} {error.reason}") from None
        except self._broken as error:
            raise CannotLook(f"{what}: {_short(error)}") from None

    def config_map(self, name: str) -> dict[str, str] | None:
        """Its data."""
        found = self.read(f"ConfigMap {name}", self.core.read_namespaced_config_map, name, self.namespace)
        return None if found is None else dict(found.data or {})

    def secret_keys(self, name: str) -> set[str] | None:
        """Names of its keys, never their values."""
        found = self.read(f"secret {name}", self.core.read_namespaced_secret, name, self.namespace)
        return None if found is None else set(found.data or {})

    def may(self, right: Right, account: str | None = None, namespace: str | None = None) -> bool:
        """Whether this process may, or the service account `account` of the namespace. Raises CannotLook."""
        place = namespace or self.namespace
        asked = self.models.V1ResourceAttributes(**right._asdict(), namespace=place)
        api = self.models.AuthorizationV1Api()
        if account is None:
            spec = self.models.V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
            review = self.models.V1SelfSubjectAccessReview(spec=spec)
            answer = self.read("your own rights", api.create_self_subject_access_review, review)
        else:
            groups = ["serviceaccounts", f"serviceaccounts:{self.namespace}", "authenticated"]
            spec = self.models.V1SubjectAccessReviewSpec(
                user=f"system:serviceaccount:{self.namespace}:{account}",
                groups=[f"system:{name}" for name in groups],
                resource_attributes=asked,
            )
            review = self.models.V1SubjectAccessReview(spec=spec)
            answer = self.read(f"the rights of {account}", api.create_subject_access_review, review)
        if answer is None:
            raise CannotLook("this API does not tell rights")
        return bool(answer.status.allowed)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
