"""Whether the cluster has a place for every stage's pod: nodes with its GPUs and memory, its RuntimeClass, its volume.

A pod that fits nowhere waits without an end and without an error, so this is asked before.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from burnish.cli.doctor_objects import AGENT_SANDBOX
from burnish.cli.finding import Finding
from burnish.cli.kube import Cluster
from burnish.contracts.config import RunConfig
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import PLACEMENT, StagePlacement


def check_nodes(cluster: Cluster, placement: ClusterPlacement) -> Finding:
    """Each stage's request against the nodes as they would be if nothing ran there."""
    nodes = cluster.read("nodes", cluster.core.list_node).items
    homeless = [stage for stage in PLACEMENT if not any(_takes(node, placement.of(stage)) for node in nodes)]
    gpu_types = sorted({placement.of(stage).gpu_type for stage in PLACEMENT if placement.of(stage).gpus})
    gpus = ", ".join(f"{_total(nodes, kind)} {kind}" for kind in gpu_types) or "no GPU asked for"
    if not homeless:
        return Finding("nodes", f"{len(nodes)} nodes, {gpus}; every stage fits one")
    worst = max(homeless, key=lambda stage: (placement.of(stage).gpus, _amount(placement.of(stage).memory)))
    asked = placement.of(worst)
    wants = f"{asked.cpu} CPUs, {asked.memory}" + (f", {asked.gpus} {asked.gpu_type}" if asked.gpus else "")
    kinds = "add such nodes (a pool that scales from nothing looks the same), or ask for less, other labels or "
    fix = f"{kinds}tolerations with --placement FILE" + ("; --cpu asks for no GPU" if asked.gpus else "")
    detail = f"{len(nodes)} nodes, {gpus}; none takes {', '.join(homeless)}; {worst} asks for {wants}"
    return Finding("nodes", detail, fix)


def check_runtime_class(cluster: Cluster, config: RunConfig) -> Finding:
    """The RuntimeClass of the cluster's own sandboxes; where none is asked for, which there are."""
    api = cluster.models.NodeV1Api()
    name = config.execute.runtime if config.execute.backend == "kubernetes" else ""
    if not name:
        found = [one.metadata.name for one in cluster.read("RuntimeClasses", api.list_runtime_class).items]
        return Finding("runtime", f"no RuntimeClass is asked for; there are {', '.join(sorted(found)) or 'none'}")
    if cluster.read(f"RuntimeClass {name}", api.read_runtime_class, name) is None:
        fix = f"install the runtime and its RuntimeClass, or set execute.runtime to another than {name}"
        return Finding("runtime", f"there is no RuntimeClass {name}", fix)
    return Finding("runtime", f"RuntimeClass {name} is there")


def check_agent_sandbox(cluster: Cluster) -> Finding:
    """The API by which stages make sandboxes of their own."""
    groups = cluster.read("API groups", cluster.models.ApisApi().get_api_versions).groups
    if AGENT_SANDBOX in {group.name for group in groups}:
        return Finding("sandbox", f"the cluster serves {AGENT_SANDBOX}")
    fix = "install agent-sandbox (https://agent-sandbox.sigs.k8s.io), or use execute.backend=service"
    return Finding("sandbox", f"the cluster does not serve {AGENT_SANDBOX}", fix)


def check_claims(cluster: Cluster, placement: ClusterPlacement) -> Iterator[Finding]:
    """The volumes that stages keep their cache in."""
    names = {placement.of(stage).cache_claim for stage in PLACEMENT} - {None}
    for name in sorted(str(name) for name in names):
        read = cluster.core.read_namespaced_persistent_volume_claim
        found = cluster.read(f"PersistentVolumeClaim {name}", read, name, cluster.namespace)
        if found is None:
            fix = "create it, ReadWriteMany, or drop cache_claim from the placement"
            yield Finding("volume", f"PersistentVolumeClaim {name} is missing in namespace {cluster.namespace}", fix)
        else:
            yield Finding("volume", f"PersistentVolumeClaim {name} is {found.status.phase}")


def _takes(node: Any, asked: StagePlacement) -> bool:
    labels, room = node.metadata.labels or {}, node.status.allocatable or {}
    if node.spec.unschedulable or any(labels.get(key) != value for key, value in asked.node_selector.items()):
        return False
    if any(not _tolerated(taint, asked) for taint in node.spec.taints or ()):
        return False
    wants = {"cpu": asked.cpu, "memory": asked.memory} | ({asked.gpu_type: str(asked.gpus)} if asked.gpus else {})
    return all(_amount(room.get(kind, "0")) >= _amount(amount) for kind, amount in wants.items())


def _tolerated(taint: Any, asked: StagePlacement) -> bool:
    if taint.effect == "PreferNoSchedule":
        return True
    # Clusters with the admission plugin ExtendedResourceToleration give a pod with GPUs this one by themselves.
    if asked.gpus and taint.key == asked.gpu_type:
        return True
    return any(
        one.effect in {None, taint.effect}
        and one.key in {None, taint.key}
        and (one.operator == "Exists" or (one.value or "") == (taint.value or ""))
        for one in asked.tolerations
    )


def _total(nodes: Sequence[Any], kind: str) -> int:
    return sum(int(_amount((node.status.allocatable or {}).get(kind, "0"))) for node in nodes)


def _amount(quantity: str) -> float:
    from kubernetes.utils.quantity import parse_quantity

    return float(parse_quantity(quantity))
