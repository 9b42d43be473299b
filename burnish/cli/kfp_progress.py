"""How far the tasks of a KFP run are, from what the run API tells about the workflow's nodes.

KFP 2 gives one entry a node of Argo's workflow, under the name that the task has in the IR: the task itself, the driver
that prepares it (`<task>-driver`), and below the task an `executor`, whose name does not say whose it is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import Any, Literal

State = Literal["waiting", "starting", "running", "done", "failed", "skipped", "canceled"]

_STATES: dict[str, State] = {
    "PENDING": "starting",
    "RUNNING": "running",
    "PAUSED": "running",
    "SUCCEEDED": "done",
    "FAILED": "failed",
    "SKIPPED": "skipped",
    "CANCELING": "canceled",
    "CANCELED": "canceled",
}
# Of several nodes of one task (the iterations of a loop), the first of these that any is in.
_FIRST: tuple[State, ...] = ("failed", "canceled", "running", "starting", "waiting", "done", "skipped")


@dataclass(frozen=True)
class Task:
    """A leaf of the DAG."""

    name: str
    """In the IR, and so of its node."""
    title: str
    """What people see."""
    template: str = "system-container-impl"
    """Of Argo's workflow: a part of the names of the task's pods."""


@dataclass(frozen=True)
class Progress:
    """One task, now."""

    task: Task
    state: State
    seconds: float | None = None
    """Since it started, or from its start to its end; None before."""
    pods: tuple[int, int] | None = None
    """Of a task in a loop over shards: how many are done, and how many there are so far."""

    @property
    def title(self) -> str:
        """`round 3 - rollout`, with shards `round 3 - rollout 2/4`."""
        return f"{self.task.title} {self.pods[0]}/{self.pods[1]}" if self.pods else self.task.title


def tasks_of(spec: Mapping[str, Any]) -> list[Task]:
    """Leaves of the pipeline in IR `spec`, each after those it waits for; nested DAGs in place of their task.

    `spec` is the pipeline, or as the API gives it `pipeline_spec` and `platform_spec` beside each other.
    """
    platforms = (spec.get("platform_spec") or {}).get("platforms", {})
    executors = platforms.get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    pipeline = spec.get("pipeline_spec") or spec
    return list(_leaves(pipeline, pipeline["root"]["dag"], executors))


def _leaves(spec: Mapping[str, Any], dag: Mapping[str, Any], executors: Mapping[str, Any]) -> Iterator[Task]:
    tasks = dag["tasks"]
    order = TopologicalSorter({name: tasks[name].get("dependentTasks", ()) for name in sorted(tasks)})
    for name in order.static_order():
        task = tasks[name]
        component = spec["components"][task["componentRef"]["name"]]
        if "dag" in component:
            yield from _leaves(spec, component["dag"], executors)
        else:
            executor = executors.get(component.get("executorLabel"), {})
            yield Task(name, task.get("taskInfo", {}).get("name") or name, _template(task, executor))


def _template(task: Mapping[str, Any], executor: Mapping[str, Any]) -> str:
    """As KFP's compiler to Argo names it (backend/src/v2/compiler/argocompiler/container.go)."""
    name = "retry-system-container-impl" if "retryPolicy" in task else "system-container-impl"
    if (metadata := executor.get("podMetadata")) is None:
        return name
    return f"metadata-{len(metadata.get('annotations', {}))}-{len(metadata.get('labels', {}))}-{name}"


def progress_of(tasks: Sequence[Task], details: Sequence[Any], now: datetime | None = None) -> list[Progress]:
    """One entry a task, in their order, from the `task_details` of KFP's run."""
    now = now or datetime.now(UTC)
    nodes: dict[str, list[Any]] = defaultdict(list)
    for detail in details:
        nodes[detail.display_name].append(detail)
    return [_progress(task, nodes, now) for task in tasks]


def _progress(task: Task, nodes: Mapping[str, Sequence[Any]], now: datetime) -> Progress:
    found, drivers = nodes.get(task.name, ()), nodes.get(f"{task.name}-driver", ())
    # A task whose driver failed is never started.
    if any(driver.state == "FAILED" for driver in drivers):
        return Progress(task, "failed")
    if not found:
        return Progress(task, "starting" if drivers else "waiting")
    # What Argo omits has no state at all in KFP.
    states = {_STATES.get(node.state, "skipped") for node in found}
    state = next(state for state in _FIRST if state in states)
    done = sum(_STATES.get(node.state) == "done" for node in found)
    pods = (done, len(found)) if len(found) > 1 else None
    starts = [node.start_time for node in found if _known(node.start_time)]
    if not starts or state == "skipped":
        return Progress(task, state, pods=pods)
    ends = [node.end_time if _known(node.end_time) else now for node in found]
    return Progress(task, state, max(0.0, (max(ends) - min(starts)).total_seconds()), pods)


def _known(time: datetime | None) -> bool:
    """KFP gives 1970, or the year 1, for a time that is not yet."""
    return time is not None and time.year > 1970
