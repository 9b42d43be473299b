import sys
from pathlib import Path

import pytest

from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "cli")]


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
