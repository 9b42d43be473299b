"""The chart's places, and ways through what it renders."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/burnish"
# None: the chart's own values.
VALUE_SETS: dict[str, Path | None] = {
    "defaults": None,
    **{file.stem: file for file in sorted((Path(__file__).parent / "values").glob("*.yaml"))},
}

Object = dict[str, Any]


class HelmError(Exception):
    """What helm printed when it refused."""


def pick(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """(name, metadata, spec) of every pod that the objects describe."""
    for item in objects:
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["metadata"], item["spec"]
        elif "template" in item.get("spec", {}):
            yield item["metadata"]["name"], item["spec"]["template"]["metadata"], item["spec"]["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    return pod["containers"] + pod.get("initContainers", [])


def pod_of(objects: list[Object], wanted: str) -> Object:
    """Spec of the pod that the object of this name describes."""
    (found,) = (spec for name, _, spec in pods(objects) if name == wanted)
    return found
