"""One SeaweedFS for all of the folder, and in front of it for each test a proxy that breaks things."""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "store")]

from faulty_proxy import Faults, faulty_proxy  # noqa: E402

from burnish.store import ArtifactStore, open_store  # noqa: E402
from burnish.store.seaweed import start_seaweed  # noqa: E402

_numbers = itertools.count()


@dataclass
class Place:
    """A store of its own prefix, behind the proxy for stages and in front of it for the test."""

    environment: dict[str, str]
    """What a stage needs to reach the store through the proxy."""
    faults: Faults
    open: Callable[..., ArtifactStore]
    """The store, or the one at another URL, without the proxy and with an empty cache."""


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with start_seaweed(tmp_path_factory.mktemp("seaweed")) as environment:
        yield environment


@pytest.fixture
def place(seaweed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_PARENT_RUN_ID", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    url = f"s3://burnish/faults-{next(_numbers)}"
    (tmp_path / "tmp").mkdir()
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        environment = seaweed | {
            "BURNISH_STORE": url,
            "BURNISH_S3_ENDPOINT": endpoint,
            "BURNISH_CACHE": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path / "tmp"),
        }

        def open_directly(at: str = url) -> ArtifactStore:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in (environment | seaweed).items():
                    patch.setenv(name, value)
                patch.setenv("BURNISH_CACHE", str(tmp_path / f"cache-{next(_numbers)}"))
                return open_store(at)

        yield Place(environment, faults, open_directly)
