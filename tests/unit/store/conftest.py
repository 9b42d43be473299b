"""Stores over a folder and over a real SeaweedFS that lives as long as the test session."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend
from burnish.store.s3 import S3Backend
from burnish.store.seaweed import start_seaweed

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with start_seaweed(tmp_path_factory.mktemp("seaweed")) as environment:
        yield environment


def s3_backend(environment: Mapping[str, str], prefix: str, **changes: str | int) -> S3Backend:
    settings: dict[str, str | int] = {
        "endpoint": environment["BURNISH_S3_ENDPOINT"],
        "bucket": "burnish",
        "region": "us-east-1",
        "access_key": environment["AWS_ACCESS_KEY_ID"],
        "secret_key": environment["AWS_SECRET_ACCESS_KEY"],
    }
    return S3Backend(prefix=prefix, **(settings | changes))  # type: ignore[arg-type]


@pytest.fixture
def s3(seaweed: dict[str, str]) -> Callable[..., S3Backend]:
    """An S3 backend of its own prefix; keyword arguments change how it is opened."""
    prefix = f"test-{next(_prefixes)}"
    return lambda **changes: s3_backend(seaweed, prefix, **changes)


@pytest.fixture(params=["folder", "seaweed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "folder":
        return ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    return ArtifactStore(request.getfixturevalue("s3")(), BlobCache(tmp_path / "cache"))


@pytest.fixture
def folder_store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))


@pytest.fixture
def another_node(tmp_path: Path) -> Callable[[ArtifactStore], ArtifactStore]:
    """The same store as seen from a machine whose cache is empty."""
    nodes = itertools.count()
    return lambda store: ArtifactStore(store.backend, BlobCache(tmp_path / f"node-{next(nodes)}"))


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Manifest]:
    """Write files and publish them as an artifact."""
    folders = itertools.count()

    def put(
        store: ArtifactStore, files: Mapping[str, bytes], kind: str = "policy", inputs: Mapping[str, str] | None = None
    ) -> Manifest:
        folder = tmp_path / f"out-{next(folders)}"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        folder.mkdir(exist_ok=True)
        lineage = Lineage(stage="update", inputs=dict(inputs or {}))
        return store.put_artifact(kind, folder, lineage=lineage, counts={"rows": 3}, metadata={"policy_version": 1})

    return put
