"""Clocks that disagree: requests that a store refuses are explained, and no decision compares two machines' clocks."""

import os
import time

import pytest
from two_stages import SKEW, start

from burnish.contracts.artifacts import Lineage, StageRecord
from burnish.store import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.collection import collect, find_garbage
from burnish.store.folder import FolderBackend


@pytest.mark.parametrize(("skew_s", "words"), [(3600, "60 minutes ahead of"), (-3600, "60 minutes behind")])
def test_a_clock_that_the_store_refuses_is_named_and_not_the_keys(place, tmp_path, skew_s, words) -> None:
    process = start(place.environment | {SKEW: str(skew_s)}, tmp_path / "run", "run")
    assert process.wait() == 4
    [line] = process.errors
    assert f"this machine's clock is {words} the store's; set both by NTP" in line
    assert "AWS_ACCESS_KEY_ID" not in line
    assert len(place.faults.requests) == 1, "asked once"


@pytest.mark.parametrize("skew_s", [240, -240])
def test_pods_whose_clocks_differ_by_minutes_pass_their_artifacts_on(place, tmp_path, skew_s) -> None:
    right = start(place.environment, tmp_path / "right", "run")
    assert right.wait() == 0, right.log
    environment = place.environment | {"BURNISH_STORE": place.environment["BURNISH_STORE"] + "/skewed"}
    first = start(environment | {SKEW: str(skew_s)}, tmp_path / "skewed", "run", stages=("make",))
    assert first.wait() == 0, first.log
    second = start(environment | {SKEW: str(-skew_s)}, tmp_path / "skewed", "run", stages=("double",))
    assert second.wait() == 0, second.log
    assert second.outputs() == right.outputs()


@pytest.fixture(params=["folder", "seaweed"])
def store(request, tmp_path) -> ArtifactStore:
    if request.param == "folder":
        return ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    return request.getfixturevalue("place").open()


def put(store: ArtifactStore, folder, kind: str = "policy") -> str:
    folder.mkdir(parents=True)
    (folder / "data").write_text(folder.name)
    return store.put_artifact(kind, folder, lineage=Lineage(stage="update"), counts={}, metadata={}).digest


@pytest.mark.parametrize("days", [30, -30])
def test_gc_spares_what_is_young_by_the_store_s_clock_whatever_ours_says(store, tmp_path, monkeypatch, days) -> None:
    digest = put(store, tmp_path / "out")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + days * 86400)
    garbage = find_garbage(store)
    assert len(garbage) == 0
    list(collect(store, garbage))
    assert store.get_manifest(digest)


def test_gc_takes_what_is_old_by_the_store_s_clock_although_ours_is_behind(tmp_path, monkeypatch) -> None:
    store = ArtifactStore(FolderBackend(tmp_path / "bucket"), BlobCache(tmp_path / "cache"))
    put(store, tmp_path / "out")
    for path in store.backend.root.rglob("*"):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 30 * 86400)
    assert len(find_garbage(store)) == 2


def test_the_newest_trainer_state_is_that_of_the_last_round_whatever_its_pod_s_clock_said(store, tmp_path) -> None:
    states = [put(store, tmp_path / f"state-{round}", "trainer_state") for round in (1, 2, 3)]
    for round, state in enumerate(states, 1):
        started_at = time.time() - 3600 * round  # the later, the more behind
        record = StageRecord(
            run_id="run", stage="update", round=round, key="a" * 64, outputs={"updated_trainer_state": state},
            started_at=started_at,
        )  # fmt: skip
        store.put_run_record(record)
    garbage = find_garbage(store, grace_s=-60, keep_trainer_states=1)
    assert {found.key for found in garbage.manifests} == {f"manifests/{state}.json" for state in states[:2]}
