"""What killed processes leave on a machine goes away again: temporary files of a folder store, work folders."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from killer import Killer
from two_stages import start

from burnish.contracts.artifacts import Lineage
from burnish.stages import attempt
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.collection import collect, find_garbage
from burnish.store.folder import FolderBackend, whole_file


def test_half_a_file_of_a_folder_store_is_seen_by_nobody_and_collected(tmp_path) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    manifest = store.put_artifact("policy", tmp_path / "out", lineage=Lineage(stage="sft"), counts={}, metadata={})
    busy = whole_file(store.backend.root / "blobs" / "sha256" / "half")
    half = busy.__enter__()  # and its process dies
    half.write_bytes(b"half")
    assert [found.key for found in store.backend.list("")] == [f"manifests/{manifest.digest}.json"]
    assert find_garbage(store).unfinished == [], "its writer may be alive"
    os.utime(half, (time.time() - 2 * 86400,) * 2)
    list(collect(store, find_garbage(store)))
    assert not half.exists()
    assert store.get_manifest(manifest.digest) == manifest


@pytest.fixture
def sweeping(place, monkeypatch) -> Path:
    """The folder in which attempts work, from which abandoned ones are taken at once."""
    monkeypatch.setattr(attempt, "_ABANDONED_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", place.environment["TMPDIR"])
    return Path(place.environment["TMPDIR"])


def test_the_work_folder_of_a_killed_attempt_is_removed_by_the_next(place, sweeping, tmp_path) -> None:
    first = start(place.environment, tmp_path / "run", "run", stages=("make",))
    assert first.wait() == 0
    place.faults.at = killer = Killer("arrived", 4)
    killed = start(place.environment, tmp_path / "run", "run", stages=("double",))
    killer.aim(killed.pid)
    assert killed.wait() == -signal.SIGKILL
    [left] = sweeping.iterdir()
    cached = [path for path in (tmp_path / "cache" / "blobs").iterdir() if path.stat().st_nlink > 1]
    assert cached, "its inputs hold blobs in the node's cache"
    with attempt.work_folder("double") as folder:
        assert list(sweeping.iterdir()) == [folder]
    assert not left.exists()
    assert [path for path in cached if path.stat().st_nlink > 1] == []


def test_the_work_folder_of_a_living_attempt_stays(sweeping) -> None:
    with attempt.work_folder("make") as mine:
        (mine / "data").write_text("mine")
        with attempt.work_folder("make") as other:
            assert other != mine
        assert (mine / "data").read_text() == "mine"
    assert list(sweeping.iterdir()) == []
