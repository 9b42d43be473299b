"""Reads Dockerfiles and requirement files, for the tests beside it: what an image stands on and what it installs."""

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docker/requirements"
# Images that others stand on; they are never run.
SHARED = {"wheels", "base", "code", "tasks", "torch", "trainer", "vllm"}
# Images that are run beside the stages.
SERVICES = ("sandbox", "server", "exporter")


def instructions(text, keyword):
    return re.findall(rf"^{keyword} +(.+)$", text, re.MULTILINE)


def ancestors(build, image):
    """Images whose layers `image` has: those of its last FROM, which for vllm names one of its own steps."""
    text = (ROOT / f"docker/{image}.Dockerfile").read_text("utf-8")
    steps = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\w+)$", text, re.MULTILINE)}
    last = instructions(text, "FROM")[-1].replace("${ACCELERATOR}", "cpu")
    parents = build.PARENT.findall(f"FROM {steps.get(last, last)}")
    return [image] + [name for parent in parents for name in ancestors(build, parent)]


def installed(build, dockerfiles, image, accelerator="cpu"):
    """Names of the requirement files whose packages `image` has."""
    runs = [run for name in ancestors(build, image) for run in instructions(dockerfiles[name], "RUN")]
    words = [
        word for run in runs for call in re.findall(r"install\.sh /(\S+.*?)(?:&&|$)", run) for word in call.split()[1:]
    ]
    other = "-cuda" if accelerator == "cpu" else "-cpu"
    return {word for word in words if not word.startswith("-") and not word.endswith(other)}


def pins(path):
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in requirements:
        assert len(requirement.specifier) == 1, f"{path.name}: {requirement} is not one exact version"
        assert next(iter(requirement.specifier)).operator == "==", f"{path.name}: {requirement} is not exact"
        assert "*" not in str(requirement.specifier), f"{path.name}: {requirement} is not exact"
    return {canonicalize_name(item.name): next(iter(item.specifier)).version for item in requirements}
