"""What the tests of the container images share: the build script as a module, the Dockerfiles, a Docker daemon."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import burnish

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def build() -> ModuleType:
    """docker/build.py, which is a script and not a package."""
    spec = importlib.util.spec_from_file_location("image_build", ROOT / "docker/build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def dockerfiles() -> dict[str, str]:
    """The text of every Dockerfile, by the image's name, without comments and with continued lines joined."""
    texts = {}
    for file in sorted((ROOT / "docker").glob("*.Dockerfile")):
        lines = [line for line in file.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
        texts[file.name.removesuffix(".Dockerfile")] = "\n".join(lines).replace("\\\n", " ")
    return texts


@pytest.fixture(scope="session")
def daemon() -> Any:
    """A client of a reachable Docker daemon."""
    docker = pytest.importorskip("docker")
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker daemon is reachable (DOCKER_HOST): {error}")
    return client


@pytest.fixture(scope="session")
def repository_and_tag() -> tuple[str, str]:
    """Of the images: BURNISH_IMAGES and BURNISH_TAG, or what `make images` makes."""
    return os.environ.get("BURNISH_IMAGES", "burnish"), os.environ.get("BURNISH_TAG", burnish.__version__)


@pytest.fixture(scope="session")
def image_name(repository_and_tag) -> Any:
    """The full name of a stage's image."""
    repository, tag = repository_and_tag
    return lambda stage: f"{repository}/{stage}:{tag}"
