"""Artifacts in and out, over a folder and over SeaweedFS."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watched_backend import WatchedBackend, files_under

from burnish.contracts.artifacts import Blob, Lineage, Manifest, StageRecord
from burnish.contracts.errors import ContractError, StoreError
from burnish.store.artifacts import ArtifactStore, blob_key, manifest_key, result_key
from burnish.store.cache import CHUNK, BlobCache
from burnish.store.folder import FolderBackend

KEY = "a" * 64
FILES = {"model.safetensors": os.urandom(3 << 20), "tokenizer/vocab.json": b"{}", "empty": b""}


def test_an_artifact_comes_back_as_it_was_put(store, another_node, put, tmp_path) -> None:
    manifest = put(store, FILES)
    assert store.get_manifest(manifest.digest) == manifest
    assert manifest.counts == {"rows": 3}
    assert manifest.metadata == {"policy_version": 1}
    assert manifest.size == sum(map(len, FILES.values()))
    another_node(store).fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == FILES


def test_a_file_of_several_parts_and_ranges_comes_back_as_it_was_put(store, another_node, put, tmp_path) -> None:
    files = {"big": os.urandom(2 * CHUNK + 12345)}
    another_node(store).fetch(put(store, files), tmp_path / "in")
    assert files_under(tmp_path / "in") == files


def test_the_next_stage_on_the_node_downloads_nothing(store, put, tmp_path) -> None:
    store.backend = backend = WatchedBackend(store.backend)
    store.fetch(put(store, FILES), tmp_path / "in")
    assert files_under(tmp_path / "in") == FILES
    assert backend.count("get_range") == 0


def test_putting_the_same_bytes_again_uploads_none_of_them(store, another_node, put) -> None:
    first = put(store, FILES)
    node = another_node(store)
    node.backend = backend = WatchedBackend(store.backend)
    assert put(node, FILES).digest == first.digest
    assert backend.uploaded == 0
    assert backend.count("put_file") == 0


def test_only_the_changed_file_is_uploaded(store, put) -> None:
    put(store, FILES)
    store.backend = backend = WatchedBackend(store.backend)
    put(store, FILES | {"tokenizer/vocab.json": b'{"a": 1}'})
    assert backend.uploaded == len(b'{"a": 1}')


def test_equal_files_of_an_artifact_are_one_blob(store, another_node, put, tmp_path) -> None:
    store.backend = backend = WatchedBackend(store.backend)
    manifest = put(store, {"a": b"same", "b": b"same"})
    assert backend.count("put_file") == 1
    another_node(store).fetch(manifest, tmp_path / "in")
    assert files_under(tmp_path / "in") == {"a": b"same", "b": b"same"}


def test_an_artifact_without_files_is_an_artifact(store, another_node, put, tmp_path) -> None:
    another_node(store).fetch(put(store, {}), tmp_path / "in")
    assert (tmp_path / "in").is_dir()


def test_a_writer_that_dies_leaves_no_manifest(store, put) -> None:
    def die(operation: str, key: str) -> None:
        if operation == "put_bytes":
            raise KeyboardInterrupt

    inner = store.backend
    store.backend = WatchedBackend(inner, die)
    with pytest.raises(KeyboardInterrupt):
        put(store, FILES)
    assert list(inner.list("manifests/")) == []
    assert len(list(inner.list("blobs/"))) == len(FILES)
    store.backend = backend = WatchedBackend(inner)
    put(store, FILES)
    assert backend.uploaded == 0, "the retry uses what the dead writer had uploaded"


def test_a_truncated_blob_is_uploaded_again(store, put) -> None:
    manifest = put(store, {"a": b"whole"})
    key = blob_key(manifest.blobs[0].sha256)
    store.backend.put_bytes(key, b"who")
    put(store, {"a": b"whole"})
    assert store.backend.get_bytes(key) == b"whole"


def test_a_blob_that_is_collected_while_its_artifact_is_written_is_uploaded_again(store, put) -> None:
    manifest = put(store, {"a": b"bytes"})
    key = blob_key(manifest.blobs[0].sha256)
    inner = store.backend
    inner.delete([manifest_key(manifest.digest)])

    def collect(operation: str, at: str) -> None:
        if operation == "put_bytes":
            inner.delete([key])

    store.backend = WatchedBackend(inner, collect)
    put(store, {"a": b"bytes"})
    assert inner.get_bytes(key) == b"bytes"


def test_a_corrupt_blob_is_named_with_its_artifact_and_key(store, another_node, put, tmp_path) -> None:
    manifest = put(store, {"weights": b"right bytes"})
    key = blob_key(manifest.blobs[0].sha256)
    store.backend.put_bytes(key, b"wrong bytes")
    node = another_node(store)
    with pytest.raises(StoreError) as error:
        node.fetch(manifest, tmp_path / "in")
    assert "policy artifact" in str(error.value)
    assert manifest.digest in str(error.value)
    assert key in str(error.value)
    assert "corrupt" in str(error.value)
    assert files_under(node.cache.root) == {}, "nothing half-fetched stays"
    assert files_under(tmp_path / "in") == {}


def test_a_missing_blob_is_named_with_its_artifact_and_key(store, another_node, put, tmp_path) -> None:
    manifest = put(store, {"weights": b"bytes"})
    key = blob_key(manifest.blobs[0].sha256)
    store.backend.delete([key])
    with pytest.raises(StoreError, match=f"policy artifact {manifest.digest}.*{key} is missing.*'update' again"):
        another_node(store).fetch(manifest, tmp_path / "in")


def test_a_blob_shorter_than_its_manifest_says_is_an_error(folder_store, another_node, put, tmp_path) -> None:
    manifest = put(folder_store, {"weights": b"right bytes"})
    folder_store.backend.put_bytes(blob_key(manifest.blobs[0].sha256), b"right")
    with pytest.raises(StoreError, match="6 bytes too short"):
        another_node(folder_store).fetch(manifest, tmp_path / "in")


def test_a_corrupt_manifest_is_refused(store, put) -> None:
    manifest = put(store, {"a": b"1"})
    text = manifest.to_json().replace('"rows":3', '"rows":4')
    store.backend.put_bytes(manifest_key(manifest.digest), text.encode())
    with pytest.raises(StoreError, match=r"manifests/.* is corrupt"):
        store.get_manifest(manifest.digest)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a/../../evil", "a//b", "", "a\\b", "."])
def test_a_manifest_whose_paths_leave_the_folder_is_refused(store, path: str) -> None:
    blob = Blob.model_construct(path=path, sha256=hashlib.sha256(b"x").hexdigest(), size=1)
    hostile = Manifest.model_construct(
        manifest_version=1, kind="policy", blobs=[blob], lineage=Lineage(stage="sft"), counts={}, metadata={}
    )
    store.put_manifest(hostile)
    with pytest.raises(ContractError, match="leaves the artifact's folder"):
        store.get_manifest(hostile.digest)


@pytest.mark.parametrize("digest", ["../results/x", "A" * 64, "a" * 63, "", "a" * 64 + "\n"])
def test_a_digest_that_is_none_never_becomes_a_key(folder_store, digest: str) -> None:
    with pytest.raises(StoreError, match="manifest digest"):
        folder_store.get_manifest(digest)


@pytest.mark.parametrize("run_id", ["../x", "a/b", "", ".hidden", "a" * 129, "x\n"])
def test_a_run_id_that_leaves_its_folder_is_refused(folder_store, run_id: str) -> None:
    with pytest.raises(StoreError, match="run id"):
        folder_store.run_records(run_id)


def record(**changes: object) -> StageRecord:
    return StageRecord.model_validate({"run_id": "run", "stage": "update", "round": 3, "key": KEY, **changes})


def test_a_result_is_known_while_all_of_it_is_there(store, put) -> None:
    assert store.get_result(KEY) is None
    manifest = put(store, FILES)
    known = record(outputs={"updated_policy": manifest.digest}, metrics={"loss": 0.5, "kl": None})
    store.put_result(known)
    assert store.get_result(KEY) == known


def test_a_result_whose_blob_is_gone_is_not_known(store, put) -> None:
    manifest = put(store, FILES)
    store.put_result(record(outputs={"updated_policy": manifest.digest}))
    store.backend.delete([blob_key(manifest.blobs[0].sha256)])
    assert store.get_result(KEY) is None


def test_a_result_whose_manifest_is_gone_is_not_known(store, put) -> None:
    manifest = put(store, FILES)
    store.put_result(record(outputs={"updated_policy": manifest.digest}))
    store.backend.delete([manifest_key(manifest.digest)])
    assert store.get_result(KEY) is None


def test_asking_for_a_result_moves_no_blob(store, put) -> None:
    manifest = put(store, FILES)
    store.put_result(record(outputs={"updated_policy": manifest.digest}))
    store.backend = backend = WatchedBackend(store.backend)
    assert store.get_result(KEY)
    assert backend.count("get_range") == 0
    assert backend.count("size") == len(FILES)


def test_a_result_that_cannot_be_read_is_not_known_and_is_written_anew(store) -> None:
    store.backend.put_bytes(result_key(KEY), b'{"record_version": 2}')
    assert store.get_result(KEY) is None
    store.put_result(record())
    assert store.get_result(KEY) == record()


def test_a_result_whose_manifest_is_corrupt_is_not_known_and_is_written_anew(store, put) -> None:
    manifest = put(store, FILES)
    store.put_result(record(outputs={"updated_policy": manifest.digest}))
    store.backend.put_bytes(manifest_key(manifest.digest), b"{}")
    assert store.get_result(KEY) is None
    assert put(store, FILES) == manifest
    assert store.get_result(KEY)


def test_a_run_record_that_cannot_be_read_is_one_clear_line(store) -> None:
    store.backend.put_bytes("runs/run/sft.json", b'{"record_version": 2}')
    with pytest.raises(StoreError, match=r"record runs/run/sft\.json cannot be read"):
        store.run_records("run")


def test_run_records_come_in_the_order_in_which_they_started(store) -> None:
    store.put_run_record(record(stage="rollout", started_at=2.0))
    store.put_run_record(record(stage="sft", round=None, started_at=1.0))
    store.put_run_record(record(stage="evaluate", round=None, label="after", started_at=3.0))
    store.put_run_record(record(run_id="other"))
    titles = [found.title for found in store.run_records("run")]
    assert titles == ["sft", "round 3 - rollout", "evaluate - after"]
    assert store.run_ids() == ["other", "run"]


def test_a_later_attempt_replaces_the_record_of_the_earlier(store) -> None:
    store.put_run_record(record(error="out of memory"))
    store.put_run_record(record())
    assert [found.error for found in store.run_records("run")] == [None]


def test_a_run_that_never_was_has_no_records(store) -> None:
    assert store.run_records("nothing") == []
    assert store.run_ids() == []


names = st.text("abcxyz._- ", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(st.tuples(names, names), st.binary(max_size=64), max_size=5))
def test_any_tree_of_files_comes_back(tree: dict[tuple[str, str], bytes], tmp_path_factory) -> None:
    folder: Path = tmp_path_factory.mktemp("tree")
    files = {f"d{first}/{second}": data for (first, second), data in tree.items()}
    for name, data in files.items():
        (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / name).write_bytes(data)
    writer = ArtifactStore(FolderBackend(folder / "bucket"), BlobCache(folder / "cache"))
    manifest = writer.put_artifact("report", folder / "out", lineage=Lineage(stage="x"), counts={}, metadata={})
    reader = ArtifactStore(writer.backend, BlobCache(folder / "other cache"))
    reader.fetch(reader.get_manifest(manifest.digest), folder / "in")
    assert files_under(folder / "in") == files


def test_the_manifest_does_not_depend_on_the_machine(store, put) -> None:
    assert put(store, {"b": b"2", "a": b"1"}).digest == put(store, {"a": b"1", "b": b"2"}).digest
