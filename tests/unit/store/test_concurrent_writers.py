"""Sixteen processes publish at once, the same artifact and their own; readers see whole artifacts only."""

import multiprocessing
import os
from pathlib import Path

import pytest
from watched_backend import files_under

from burnish.contracts.artifacts import Lineage, StageRecord
from burnish.store import open_store

WRITERS = 16


@pytest.fixture(params=["folder", "seaweed"])
def configured(request, tmp_path, monkeypatch) -> None:
    """The environment of a stage, as `open_store` reads it."""
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    if request.param == "folder":
        monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "bucket"))
        return
    for name, value in request.getfixturevalue("seaweed").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BURNISH_STORE", f"s3://burnish/{tmp_path.name}")


def _write(number: int, folder: Path, shared: bytes) -> None:
    os.environ["BURNISH_CACHE"] = str(folder / f"cache-{number % 4}")
    store = open_store()
    for kind, data in (("policy", shared), ("rollouts", shared[: 1000 + number])):
        out = folder / f"out-{number}-{kind}"
        out.mkdir()
        (out / "data").write_bytes(data)
        (out / "same").write_bytes(b"same")
        lineage = Lineage(stage="sft" if kind == "policy" else f"rollout-{number}")
        manifest = store.put_artifact(kind, out, lineage=lineage, counts={}, metadata={})
        record = StageRecord(run_id="run", stage=kind, round=number + 1, key="b" * 64, outputs={kind: manifest.digest})
        store.put_run_record(record)
        store.put_result(record)


def test_sixteen_writers_at_once_leave_whole_artifacts(configured, tmp_path) -> None:
    shared = os.urandom(1 << 20)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(number, tmp_path, shared)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    store = open_store()
    records = store.run_records("run")
    assert len(records) == 2 * WRITERS
    policies = {record.outputs["policy"] for record in records if record.stage == "policy"}
    assert len(policies) == 1, "the same bytes from the same inputs are one artifact"
    assert len(list(store.backend.list("manifests/"))) == 1 + WRITERS
    assert len(list(store.backend.list("blobs/"))) == 2 + WRITERS
    for record in records:
        if record.stage == "rollouts":
            digest = record.outputs["rollouts"]
            store.fetch(store.get_manifest(digest), tmp_path / "in" / digest)
            expected = shared[: 1000 + (record.round or 0) - 1]
            assert files_under(tmp_path / "in" / digest) == {"data": expected, "same": b"same"}
    store.fetch(store.get_manifest(policies.pop()), tmp_path / "policy")
    assert (tmp_path / "policy" / "data").read_bytes() == shared
    assert store.get_result("b" * 64)
    left = [path for path in tmp_path.rglob(".tmp-*")]
    assert left == []
