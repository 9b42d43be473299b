"""The node's cache: what is kept, what is trusted, and what a full disk leaves behind."""

import errno
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from watched_backend import WatchedBackend, files_under

from burnish.contracts.artifacts import Lineage, Manifest
from burnish.contracts.errors import StoreError
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend


def test_a_fetched_blob_is_downloaded_once(folder_store, another_node, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    node = another_node(folder_store)
    node.backend = backend = WatchedBackend(node.backend)
    node.fetch(manifest, tmp_path / "first")
    node.fetch(manifest, tmp_path / "second")
    assert backend.count("get_range") == 1


def test_files_are_linked_and_read_only(folder_store, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    folder_store.fetch(manifest, tmp_path / "in")
    cached = folder_store.cache.path(manifest.blobs[0].sha256)
    assert (tmp_path / "in" / "a").samefile(cached)
    assert cached.stat().st_mode & 0o777 == 0o444


def test_the_output_of_a_stage_enters_the_cache_without_a_copy(folder_store, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    assert folder_store.cache.path(manifest.blobs[0].sha256).samefile(tmp_path / "out-0" / "a")


def test_a_cached_file_that_somebody_wrote_to_is_fetched_again(folder_store, another_node, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"right"})
    node = another_node(folder_store)
    node.fetch(manifest, tmp_path / "first")
    (tmp_path / "first" / "a").chmod(0o644)
    (tmp_path / "first" / "a").write_bytes(b"wrong")
    node.fetch(manifest, tmp_path / "second")
    assert (tmp_path / "second" / "a").read_bytes() == b"right"


def test_across_file_systems_files_are_symbolic_links(folder_store, put, tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    manifest = put(folder_store, {"sub/a": b"bytes"})
    folder_store.fetch(manifest, tmp_path / "in")
    assert (tmp_path / "in" / "sub" / "a").is_symlink()
    assert (tmp_path / "in" / "sub" / "a").read_bytes() == b"bytes"


def test_a_file_system_that_keeps_no_times_is_said_and_not_asked_for_ever(
    folder_store, another_node, put, tmp_path, monkeypatch
) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    monkeypatch.setattr(os, "utime", lambda *_, **__: None)
    with pytest.raises(StoreError, match="does not keep what is written to it; set BURNISH_CACHE"):
        another_node(folder_store).fetch(manifest, tmp_path / "in")


def test_an_output_that_is_a_symbolic_link_is_kept_as_the_file_it_points_to(folder_store, tmp_path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"bytes")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
    lineage = Lineage(stage="sft")
    manifest = folder_store.put_artifact("policy", tmp_path / "out", lineage=lineage, counts={}, metadata={})
    cached = folder_store.cache.path(manifest.blobs[0].sha256)
    assert not cached.is_symlink()
    assert cached.read_bytes() == b"bytes"


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(
    folder_store, another_node, put, tmp_path, monkeypatch
) -> None:
    manifest = put(folder_store, {"a": b"x" * 100})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    node = another_node(folder_store)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(
        StoreError, match=r"folder .*/in: the disk is full, .*node-0 too; set TMPDIR or BURNISH_CACHE"
    ) as error:
        node.fetch(manifest, tmp_path / "in")
    assert "\n" not in str(error.value)
    assert files_under(node.cache.root) == {}
    assert files_under(tmp_path / "in") == {}
    monkeypatch.undo()
    node.fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == {"a": b"x" * 100}


def test_a_full_disk_of_the_store_is_one_line_and_leaves_no_object(folder_store, put, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(StoreError, match=r"object store .*bucket, key blobs/sha256/.*: the disk is full"):
        put(folder_store, {"a": b"bytes"})
    assert files_under(folder_store.backend.root) == {}


def test_a_cache_that_may_not_be_written_is_one_line(folder_store, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    (tmp_path / "file").write_text("")
    node = ArtifactStore(folder_store.backend, BlobCache(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cache folder .*/file: .*BURNISH_CACHE"):
        node.fetch(manifest, tmp_path / "in")


def test_blobs_nobody_asked_for_longest_make_room(folder_store, put, tmp_path, monkeypatch) -> None:
    cache = BlobCache(tmp_path / "small", limit=250)
    node = ArtifactStore(folder_store.backend, cache)
    manifests = [put(folder_store, {"a": bytes([number]) * 100}) for number in range(3)]
    for number, manifest in enumerate(manifests):
        node.fetch(manifest, tmp_path / f"in-{number}")
    shutil.rmtree(tmp_path / "in-1")
    shutil.rmtree(tmp_path / "in-2")
    (cache.root / ".tmp-of-a-dead-process").write_bytes(b"")
    cache.trim()
    assert len(list(cache.root.iterdir())) == 4, "what was used within the hour stays"
    in_two_hours = time.time() + 7200  # ctime cannot be set
    monkeypatch.setattr("burnish.store.cache.time.time", lambda: in_two_hours)
    cache.trim()
    first, second, third = (manifest.blobs[0] for manifest in manifests)
    assert cache.holds(first), "an input of a running stage stays, however old"
    assert not cache.holds(second)
    assert cache.holds(third)
    assert len(list(cache.root.iterdir())) == 2, "and the dead process's file is gone"
    node.fetch(manifests[1], tmp_path / "again")
    assert (tmp_path / "again" / "a").read_bytes() == b"\x01" * 100


def _fetch(bucket: Path, cache: Path, manifest: Manifest, into: Path) -> None:
    ArtifactStore(FolderBackend(bucket), BlobCache(cache)).fetch(manifest, into)


def test_processes_that_fetch_the_same_blob_at_once_all_get_it(folder_store, put, tmp_path) -> None:
    data = os.urandom(8 << 20)
    manifest = put(folder_store, {"a": data})
    cache = tmp_path / "shared cache"
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_fetch, args=(folder_store.backend.root, cache, manifest, tmp_path / f"in-{number}"))
        for number in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for number in range(6):
        assert (tmp_path / f"in-{number}" / "a").read_bytes() == data
    assert list(files_under(cache)) == [manifest.blobs[0].sha256], "no temporary file stays"
