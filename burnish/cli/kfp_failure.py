"""Why a task of a KFP run failed: what KFP says of it, else the last words of its pod's log.

KFP up to 2.17 leaves a task's error empty, so the log is what there usually is; it is read through KFP's API, which
needs no access to the cluster.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from burnish.cli.kfp_client import first_line
from burnish.cli.kfp_progress import Task

if TYPE_CHECKING:
    import kfp

_LOG = "/apis/v1alpha1/runs/{run_id}/nodes/{node_id}/log"
_ASK_KUBECTL = "see kubectl logs -c main --prefix --tail=20 -l pipeline/runid="
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")


def failure_of(client: "kfp.Client", run_id: str, details: Sequence[Any], task: Task, sole: bool) -> str:
    """One line; where nobody tells, the command that would.

    `sole`: no other task failed, so every executor that failed is this task's.
    """
    own = [detail for detail in details if detail.display_name in {task.name, f"{task.name}-driver"}]
    executors = [detail for detail in details if sole and detail.display_name == "executor"]
    for detail in (*own, *executors):
        if detail.state == "FAILED" and detail.error and detail.error.message:
            return first_line(detail.error.message)
    if not any(detail.display_name == task.name and detail.state == "FAILED" for detail in own):
        return f"its driver did, so it never started; {_ASK_KUBECTL}{run_id}"
    for pod in _pods([*executors, *own], task.template):
        log = _log_of(client, run_id, pod)
        if log:
            return _last_words(log)
    return f"KFP does not say why; {_ASK_KUBECTL}{run_id}"


def _pods(details: Sequence[Any], template: str) -> Iterator[str]:
    """Names that the pod may have, the latest attempt first.

    Children are given by their node, `<workflow>-<hash>`, whose pod is `<workflow>-<template>-<hash>`.
    """
    nodes = [
        child.pod_name
        for detail in details
        if detail.state == "FAILED"
        for child in reversed(detail.child_tasks or [])
        if child.pod_name
    ]
    for node in nodes:
        workflow, _, digest = node.rpartition("-")
        yield f"{workflow}-{template}-{digest}"


def _log_of(client: "kfp.Client", run_id: str, pod: str) -> str | None:
    from kfp_server_api.exceptions import ApiException

    try:
        # The generated client has no method for this path, from which KFP 1's pages read their logs.
        answer = client._run_api.api_client.call_api(
            _LOG,
            "GET",
            path_params={"run_id": run_id, "node_id": pod},
            header_params={"Accept": "text/plain"},
            auth_settings=["Bearer"],
            _return_http_data_only=True,
            _preload_content=False,
        )
    except ApiException:
        return None
    return answer.data.decode("utf-8", "replace").strip() or None


def _last_words(log: str) -> str:
    """The stage's own line of error, else the exception that ended it, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    raised = [line for line in lines if _RAISED.match(line)]
    return first_line((own or raised or lines)[-1])
