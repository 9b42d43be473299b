"""`burnish doctor --cluster`: is everything in place that runs on this cluster need? From a laptop, or in a pod.

What cannot be seen from where it runs is said to be unchecked; only what is wrong counts as a failure.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator

from burnish.cli.compile import placement_of
from burnish.cli.doctor_nodes import check_agent_sandbox, check_claims, check_nodes, check_runtime_class
from burnish.cli.doctor_objects import (
    cannot,
    check_pipeline_root,
    check_secrets,
    check_settings,
    check_stage_rights,
    check_submit_rights,
)
from burnish.cli.doctor_services import (
    check_bucket,
    check_exporter,
    check_rollout_server,
    check_sandbox_service,
    check_tracking,
)
from burnish.cli.finding import Finding
from burnish.cli.kfp_client import connect, explained
from burnish.cli.kube import CannotLook, Cluster
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError
from pipelines.placement import SETTINGS_CONFIG_MAP


def check_cluster(given: argparse.Namespace, config: RunConfig) -> Iterator[Finding]:
    """Every check, as it is made. Raises ConfigError for a placement that is wrong in itself."""
    placement = placement_of(given, config)
    kfp, multi_user = check_kfp_api(given.host, given.namespace, given.token_file)
    yield kfp
    tracking = os.environ.get("MLFLOW_TRACKING_URI")
    try:
        cluster = Cluster(given.namespace)
    except CannotLook as error:
        yield cannot("kube", error)
    except BurnishError as error:
        yield Finding("kube", str(error), "check KUBECONFIG and the network")
    else:
        yield Finding("kube", f"Kubernetes {cluster.version}, namespace {cluster.namespace}")
        checks: list[tuple[str, Callable[[], Finding | Iterable[Finding]]]] = [
            ("settings", lambda: check_settings(cluster)),
            ("secret", lambda: check_secrets(cluster, placement)),
            ("root", lambda: check_pipeline_root(cluster)),
            ("rights", lambda: check_stage_rights(cluster, config, given.service_account, multi_user)),
            ("nodes", lambda: check_nodes(cluster, placement)),
            ("volume", lambda: check_claims(cluster, placement)),
            ("runtime", lambda: check_runtime_class(cluster, config)),
        ]
        if multi_user:
            checks.append(("rights", lambda: check_submit_rights(cluster)))
        checks.append(("exporter", lambda: check_exporter(cluster)))
        if config.execute.backend == "kubernetes":
            checks.append(("sandbox", lambda: check_agent_sandbox(cluster)))
        for subject, check in checks:
            yield from _tried(subject, check)
        tracking = tracking or _setting(cluster, "MLFLOW_TRACKING_URI")
    yield from _tried("bucket", check_bucket)
    if config.execute.backend == "service":
        yield from _tried("sandbox", lambda: check_sandbox_service(config))
    if config.rollout.engine == "endpoint":
        yield from _tried("rollout", lambda: check_rollout_server(config))
    yield from _tried("mlflow", lambda: check_tracking(tracking))


def check_kfp_api(host: str | None, namespace: str | None, token_file: str | None) -> tuple[Finding, bool]:
    """Whether KFP answers and lets us look at runs; and whether it is multi-user."""
    if not host:
        return Finding("kfp", "not checked: --host is not given and KFP_HOST is not set", checked=False), False
    multi_user = False
    try:
        with explained(host):
            client = connect(host, namespace, token_file)
            multi_user = bool(client.get_kfp_healthz().multi_user)
            if multi_user and not namespace:
                fix = "give --namespace with your profile's namespace"
                return Finding("kfp", f"{host} is multi-user and needs a namespace", fix), True
            client.list_runs(page_size=1, namespace=namespace if multi_user else None)
    except (BurnishError, TimeoutError) as error:
        return Finding("kfp", str(error), "give the API's address with --host, and a token that it takes"), multi_user
    kind = f"multi-user, namespace {namespace}" if multi_user else "single-user"
    return Finding("kfp", f"{host}: {kind}, lists runs"), multi_user


def _tried(subject: str, check: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except CannotLook as error:
        yield cannot(subject, error)


def _setting(cluster: Cluster, name: str) -> str | None:
    try:
        return (cluster.config_map(SETTINGS_CONFIG_MAP) or {}).get(name)
    except CannotLook:
        return None
