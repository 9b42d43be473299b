"""Disks that are full: one line that names the folder, nothing half-written, and on it goes when there is space."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from two_stages import Process, start

from burnish.contracts.artifacts import Lineage, StageRecord
from burnish.contracts.errors import StageError, StoreError
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Reward
from burnish.stages.attempt import failure_recorded, write_manifests
from burnish.store import open_store
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend

KILOBYTE = 1 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a disk of so many kilobytes; called again, makes it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def disk(kilobytes: int) -> Path:
        options = f"{'remount,' if mounted else ''}size={kilobytes}k"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(folder)
        return folder

    yield disk
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def failed(process: Process, status: int) -> str:
    """The one line that it said."""
    assert process.wait() == status, process.log
    assert "Traceback" not in process.log
    [line] = process.errors
    return line


def test_a_full_cache_costs_a_stage_nothing_but_time(place, disk, tmp_path) -> None:
    whole = start(place.environment, tmp_path / "whole", "run")
    assert whole.wait() == 0, whole.log
    cache = disk(20)
    tight = place.environment | {
        "BURNISH_CACHE": str(cache),
        "BURNISH_STORE": place.environment["BURNISH_STORE"] + "/2",
    }
    process = start(tight, tmp_path / "tight", "run")
    assert process.wait() == 0, process.log
    assert process.outputs() == whole.outputs()
    assert [path for path in files(cache) if path.stat().st_size > 20 * KILOBYTE or path.name.startswith(".tmp")] == []


def test_a_full_cache_gives_up_what_nobody_uses_first(disk, tmp_path, monkeypatch) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    manifests = []
    for number in range(2):
        out = tmp_path / f"out-{number}"
        out.mkdir()
        (out / "data").write_bytes(os.urandom(40 * KILOBYTE))
        manifests.append(store.put_artifact("policy", out, lineage=Lineage(stage="sft"), counts={}, metadata={}))
    node = ArtifactStore(store.backend, BlobCache(disk(64) / "blobs"))
    node.fetch(manifests[0], tmp_path / "in-0")
    monkeypatch.setattr("burnish.store.cache._IDLE_S", 0.0)
    node.fetch(manifests[1], tmp_path / "in-1")
    assert not node.cache.holds(manifests[0].blobs[0])
    assert node.cache.holds(manifests[1].blobs[0])


@pytest.mark.parametrize("kilobytes", [4, 8, 20, 36])
def test_a_disk_that_takes_part_of_a_blob_is_full_and_the_blob_not_corrupt(disk, tmp_path, kilobytes) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data").write_bytes(os.urandom(40 * KILOBYTE))
    manifest = store.put_artifact("policy", tmp_path / "out", lineage=Lineage(stage="sft"), counts={}, metadata={})
    tiny = disk(kilobytes)
    node = ArtifactStore(store.backend, BlobCache(tiny / "blobs"))
    with pytest.raises(StoreError, match="the disk is full") as error:
        node.fetch(manifest, tiny / "in")
    assert str(tiny / "in") in str(error.value)
    assert "BURNISH_CACHE" in str(error.value)
    assert files(tiny) == []
    disk(1024)
    node.fetch(manifest, tiny / "in")
    assert (tiny / "in" / "data").read_bytes() == (tmp_path / "out" / "data").read_bytes()


def test_a_full_work_folder_is_named_with_the_way_out_and_the_run_goes_on_later(place, disk, tmp_path) -> None:
    work = disk(16)
    environment = place.environment | {"TMPDIR": str(work)}
    line = failed(start(environment, tmp_path / "run", "run"), 5)
    assert str(work) in line
    assert "is full; free some space or set TMPDIR" in line
    store = place.open()
    assert [found.key for found in store.backend.list("")] == ["runs/run/round-1-make.json"]
    assert [record.error for record in store.run_records("run")] == [line.removeprefix("error: ")]
    assert files(work) == []

    disk(1024)
    again = start(environment, tmp_path / "run", "run")
    assert again.wait() == 0, again.log
    assert [record.error for record in store.run_records("run")] == [None, None]


def test_a_full_folder_store_is_named_and_shows_nothing_half_written(place, disk, tmp_path, monkeypatch) -> None:
    bucket = disk(100)
    environment = place.environment | {"BURNISH_STORE": str(bucket)}
    line = failed(start(environment, tmp_path / "run", "run"), 4)
    assert f"object store {bucket}, key blobs/" in line
    assert "the disk is full; free some space (burnish store gc)" in line
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "another node"))
    store = open_store(str(bucket))
    assert list(store.backend.unfinished()) == []
    for found in store.backend.list("manifests/"):
        store.fetch(
            store.get_manifest(found.key.removeprefix("manifests/").removesuffix(".json")), tmp_path / found.key
        )

    disk(1024)
    again = start(environment, tmp_path / "run", "run")
    assert again.wait() == 0, again.log


def test_libraries_that_meet_a_full_disk_in_their_own_way_end_in_the_same_line(disk, tmp_path) -> None:
    rewards = [Reward(f"sample-{number}", {}, None, []) for number in range(20_000)]
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    record = StageRecord(run_id="run", stage="reward", round=1, key="a" * 64)
    tiny = disk(16)
    with pytest.raises(StageError, match=r"round 1 - reward: the disk of .* is full"), failure_recorded(store, record):
        write_records(tiny / "rewards.parquet", rewards, Reward)
    [left] = store.run_records("run")
    assert left.error
    assert "is full" in left.error


def test_the_manifest_of_an_output_is_whole_or_not_there(disk, tmp_path) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    for number in range(200):
        (tmp_path / "out" / f"{number}").write_text(f"{number}")
    manifest = store.put_artifact("policy", tmp_path / "out", lineage=Lineage(stage="sft"), counts={}, metadata={})
    tiny = disk(8)
    with pytest.raises(StageError, match=r"output 'policy': the disk of .* is full"):
        write_manifests({"policy": manifest}, {"policy": str(tiny / "policy")})
    assert files(tiny) == []
