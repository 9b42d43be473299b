"""What runs find in their namespace: settings, secrets, KFP's pipeline root, and rights; each failure names its fix."""

from collections.abc import Iterable, Iterator, Mapping

import yaml

from burnish.cli.finding import Finding
from burnish.cli.kube import CannotLook, Cluster, Right, in_a_pod
from burnish.contracts.config import RunConfig
from pipelines.placement import (
    ROLLOUT_KEYS,
    ROLLOUT_SECRET,
    SANDBOX_KEYS,
    SANDBOX_SECRET,
    SETTINGS_CONFIG_MAP,
    STORE_KEYS,
    STORE_SECRET,
    ClusterPlacement,
)
from pipelines.stage_placement import PLACEMENT

# KFP's own names and defaults (backend/src/v2/config/env.go).
LAUNCHER_CONFIG_MAP = "kfp-launcher"
DEFAULT_PIPELINE_ROOT = "minio://mlpipeline/v2/artifacts"
MINIO_SECRET = "mlpipeline-minio-artifact"
MINIO_KEYS = ("accesskey", "secretkey")

AGENT_SANDBOX = "agents.x-k8s.io"

# What KFP itself looks up for whoever submits, where it is multi-user.
SUBMIT_RIGHTS = tuple(
    Right(verb, "pipelines.kubeflow.org", resource)
    for resource, verbs in (
        ("pipelines", ("create", "get", "list")),
        ("experiments", ("create", "get", "list")),
        ("runs", ("create", "get", "list")),
    )
    for verb in verbs
)


def check_settings(cluster: Cluster) -> Finding:
    """The ConfigMap that tells every stage where store and MLflow are."""
    found = cluster.config_map(SETTINGS_CONFIG_MAP)
    where = f"ConfigMap {SETTINGS_CONFIG_MAP} in namespace {cluster.namespace}"
    if found is None:
        fix = f"install the chart there: helm install burnish helm/burnish -n {cluster.namespace}"
        return Finding("settings", f"{where} is missing", fix)
    if not found.get("BURNISH_STORE"):
        return Finding("settings", f"{where} names no store", "set store.url in the chart's values")
    if found["BURNISH_STORE"].startswith("s3://") and not found.get("BURNISH_S3_ENDPOINT"):
        return Finding("settings", f"{where} has no BURNISH_S3_ENDPOINT", "set store.endpoint in the chart's values")
    mlflow = found.get("MLFLOW_TRACKING_URI") or "no MLflow"
    return Finding("settings", f"store {found['BURNISH_STORE']}, {mlflow}")


def check_secrets(cluster: Cluster, placement: ClusterPlacement) -> Iterator[Finding]:
    """Every secret that compiled pipelines name, with the keys they take from it."""
    wanted: dict[str, list[str]] = {STORE_SECRET: list(STORE_KEYS)}
    for stage in PLACEMENT:
        asked = placement.of(stage)
        for name, keys in (asked.secrets | {name: [] for name in asked.pull_secrets}).items():
            wanted[name] = list(dict.fromkeys([*wanted.get(name, []), *keys]))
    for name in sorted(wanted):
        yield _check_secret(cluster, name, wanted[name])
    for secret, token, service in (
        (SANDBOX_SECRET, SANDBOX_KEYS, "sandbox service"),
        (ROLLOUT_SECRET, ROLLOUT_KEYS, "rollout server"),
    ):
        if (found := cluster.secret_keys(secret)) is None:
            yield Finding("secret", f"{secret} is not there, so the {service} must ask for no token")
        else:
            yield _key_finding(cluster, secret, token, found)


def _check_secret(cluster: Cluster, name: str, keys: Iterable[str]) -> Finding:
    return _key_finding(cluster, name, keys, cluster.secret_keys(name))


def _key_finding(cluster: Cluster, name: str, keys: Iterable[str], found: set[str] | None) -> Finding:
    keys = list(keys)
    missing = [key for key in keys if key not in (found or ())]
    if found is not None and not missing:
        return Finding("secret", f"{name} has {', '.join(keys) or 'what is needed'}")
    detail = f"{name} is missing" if found is None else f"{name} lacks {', '.join(missing)}"
    given = " ".join(f"--from-literal={key}=..." for key in keys)
    again = "" if found is None else f"kubectl delete secret {name} -n {cluster.namespace}; "
    fix = f"{again}kubectl create secret generic {name} -n {cluster.namespace} {given}".rstrip()
    return Finding("secret", f"{detail} in namespace {cluster.namespace}", fix)


def check_pipeline_root(cluster: Cluster) -> Finding:
    """Where KFP keeps what passes between tasks, and the secret it takes for it."""
    try:
        root, secret, keys = _pipeline_root(cluster)
    except ValueError as error:
        fix = f"correct ConfigMap {LAUNCHER_CONFIG_MAP}, or let the chart write it (kfpLauncher.enabled)"
        return Finding("root", str(error), fix)
    if not secret:
        return Finding("root", f"{root}, with the credentials of the pod")
    finding = _check_secret(cluster, secret, keys)
    if finding.fix:
        return Finding("root", f"{root}: {finding.detail}", finding.fix)
    return Finding("root", f"{root}, with secret {secret}")


def _pipeline_root(cluster: Cluster) -> tuple[str, str | None, tuple[str, ...]]:
    """Address, secret (None: none is taken) and its keys. Raises CannotLook, ValueError for what KFP does not take."""
    launcher = cluster.config_map(LAUNCHER_CONFIG_MAP) or {}
    root = launcher.get("defaultPipelineRoot") or DEFAULT_PIPELINE_ROOT
    scheme, _, rest = root.partition("://")
    if scheme not in {"minio", "s3", "gs"} or not rest:
        raise ValueError(f"pipeline root {root!r} is not like s3://bucket/folder, minio://... or gs://...")
    try:
        return root, *_root_secret(launcher, scheme)
    except (yaml.YAMLError, AttributeError):
        raise ValueError(f"providers of ConfigMap {LAUNCHER_CONFIG_MAP} cannot be understood") from None


def _root_secret(launcher: Mapping[str, str], scheme: str) -> tuple[str | None, tuple[str, ...]]:
    providers = yaml.safe_load(launcher.get("providers") or "") or {}
    default = (providers.get(scheme) or {}).get("default")
    if default is None:
        return (MINIO_SECRET, MINIO_KEYS) if scheme == "minio" else (None, ())
    credentials = default.get("credentials") or {}
    named = credentials.get("secretRef") or {}
    if credentials.get("fromEnv") or not named.get("secretName"):
        return None, ()
    keys = (named.get("accessKeyKey"), named.get("secretKeyKey"), named.get("tokenKey"))
    return named["secretName"], tuple(key for key in keys if key)


def check_submit_rights(cluster: Cluster) -> Finding:
    """Whether whoever runs this may submit, where KFP is multi-user."""
    missing = [str(right) for right in SUBMIT_RIGHTS if not cluster.may(right)]
    if missing:
        fix = "let an admin name you in the chart's rbac.submitters, with kfp.multiUser on"
        return Finding("rights", f"you may not {', '.join(missing)} in namespace {cluster.namespace}", fix)
    return Finding("rights", f"you may submit in namespace {cluster.namespace}")


def check_stage_rights(cluster: Cluster, config: RunConfig, account: str | None, multi_user: bool) -> Finding:
    """What the pods of a run do to the cluster. In a pod it asks for the pod's own account."""
    if account is None and not in_a_pod():
        account = "default-editor" if multi_user else "pipeline-runner"
    who = f"service account {account}" if account else "this pod's account"
    missing = [str(right) for right in _stage_rights(cluster) if not cluster.may(right, account)]
    fix = "bind it to the role that KFP's manifests give the account of its runs"
    if not missing and config.execute.backend == "kubernetes":
        place = config.execute.namespace or cluster.namespace
        verbs = ("create", "get", "patch", "delete")
        rights = [Right(verb, AGENT_SANDBOX, "sandboxes") for verb in verbs]
        missing = [str(right) for right in rights if not cluster.may(right, account, place)]
        fix = "name it in the chart's rbac.agentSandbox"
    if missing:
        return Finding("rights", f"{who} may not {', '.join(missing)}", fix)
    return Finding("rights", f"{who} may do what a run's pods do")


def _stage_rights(cluster: Cluster) -> list[Right]:
    """What Argo's executor and KFP's launcher do in every pod of a run."""
    results = [Right(verb, "argoproj.io", "workflowtaskresults") for verb in ("create", "patch")]
    reads = [Right("get", "", "configmaps", LAUNCHER_CONFIG_MAP)]
    try:
        _, secret, _ = _pipeline_root(cluster)
    except (CannotLook, ValueError):
        return results + reads
    return results + reads + ([Right("get", "", "secrets", secret)] if secret else [])


def cannot(subject: str, error: CannotLook) -> Finding:
    return Finding(subject, f"not checked: {error}", checked=False)
