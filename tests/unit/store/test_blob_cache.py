"""The node's cache: what is kept, what is trusted, and what a full disk leaves behind."""

import errno
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest
from watched_backend import WatchedBackend, files_under

from burnish.contracts.artifacts import Manifest
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


def test_a_full_disk_is_one_line_and_leaves_nothing_in_the_cache(
    folder_store, another_node, put, tmp_path, monkeypatch
) -> None:
    manifest = put(folder_store, {"a": b"x" * 100})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    node = another_node(folder_store)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"cache folder .*node-0: the disk is full.*BURNISH_CACHE") as error:
        node.fetch(manifest, tmp_path / "in")
    assert "\n" not in str(error.value)
    assert files_under(node.cache.root) == {}
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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_really_full_disk_is_one_line_and_leaves_nothing_in_the_cache(folder_store, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": os.urandom(3 << 20)})
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tiny], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        node = ArtifactStore(folder_store.backend, BlobCache(tiny / "cache"))
        with pytest.raises(StoreError, match="the disk is full"):
            node.fetch(manifest, tmp_path / "in")
        assert files_under(tiny) == {}
    finally:
        subprocess.run(["umount", tiny], check=True)


def test_a_cache_that_may_not_be_written_is_one_line(folder_store, put, tmp_path) -> None:
    manifest = put(folder_store, {"a": b"bytes"})
    (tmp_path / "file").write_text("")
    node = ArtifactStore(folder_store.backend, BlobCache(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cache folder .*/file: .*BURNISH_CACHE"):
        node.fetch(manifest, tmp_path / "in")


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
