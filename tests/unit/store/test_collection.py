"""Garbage collection: what goes, what stays, and what a crash or a writer in between finds."""

import os

import pytest
from watched_backend import WatchedBackend

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.errors import StoreError
from burnish.store.artifacts import blob_key, manifest_key
from burnish.store.collection import collect, find_garbage
from burnish.store.verify import inspect


def record(store, run_id: str, round: int, outputs: dict[str, str], key: str = "") -> StageRecord:
    """A finished update, remembered and noted in its run."""
    written = StageRecord(
        run_id=run_id,
        stage="update",
        round=round,
        key=key or f"{round:x}" * 64,
        outputs=outputs,
        started_at=float(round),
    )
    store.put_result(written)
    store.put_run_record(written)
    return written


def keys(store) -> set[str]:
    return {found.key for found in store.backend.list("")} - {"gc/clock"}


def gc(store, **options) -> None:
    garbage = find_garbage(store, **({"grace_s": -60.0} | options))
    list(collect(store, garbage))


def dangling(store) -> list[str]:
    """What points to something that is not there."""
    return [check.key for check in inspect(store).run() if check.fault]


def test_what_a_run_refers_to_stays(store, put) -> None:
    policy = put(store, {"w": b"weights"})
    known = record(store, "run", 1, {"updated_policy": policy.digest})
    before = keys(store)
    gc(store)
    assert keys(store) == before
    assert store.get_result(known.key) == known


def test_what_no_run_refers_to_goes(store, put) -> None:
    kept = put(store, {"w": b"weights", "shared": b"tokenizer"})
    orphan = put(store, {"w": b"other weights", "shared": b"tokenizer"})
    record(store, "run", 1, {"updated_policy": kept.digest})
    lost = StageRecord(run_id="gone", stage="update", key="d" * 64, outputs={"updated_policy": orphan.digest})
    store.put_result(lost)
    store.backend.put_bytes(blob_key("e" * 64), b"of a writer that died")
    gc(store)
    assert {found.key for found in store.backend.list("manifests/")} == {manifest_key(kept.digest)}
    assert {found.key for found in store.backend.list("blobs/")} == {blob_key(blob.sha256) for blob in kept.blobs}
    assert store.get_result(lost.key) is None
    assert dangling(store) == []


def test_looking_for_garbage_deletes_nothing(store, put) -> None:
    put(store, {"w": b"weights"})
    before = keys(store)
    garbage = find_garbage(store, grace_s=-60)
    assert (len(garbage.manifests), len(garbage.blobs), garbage.size) == (1, 1, 7)
    assert keys(store) == before


def test_what_is_young_stays_with_all_its_blobs(folder_store, put) -> None:
    young = put(folder_store, {"w": b"weights", "t": b"tokenizer"})
    # Its tokenizer was uploaded long ago by somebody else.
    [old] = [blob for blob in young.blobs if blob.path == "t"]
    os.utime(folder_store.backend.root / blob_key(old.sha256), (0, 0))
    before = keys(folder_store)
    garbage = find_garbage(folder_store)
    assert len(garbage) == 0
    list(collect(folder_store, garbage))
    assert keys(folder_store) == before


def test_of_the_trainer_states_only_the_newest_stay(store, put) -> None:
    outputs = []
    for round in (1, 2, 3):
        policy = put(store, {"w": b"weights %d" % round})
        state = put(store, {"adam": b"moments %d" % round}, kind="trainer_state")
        outputs.append((policy, state))
        record(store, "run", round, {"updated_policy": policy.digest, "updated_trainer_state": state.digest})
    gc(store, keep_trainer_states=1)
    for policy, _ in outputs:
        assert store.get_manifest(policy.digest) == policy
    assert store.get_result("1" * 64) is None
    assert store.get_result("2" * 64) is None
    assert store.get_result("3" * 64)
    assert store.get_manifest(outputs[2][1].digest)
    assert manifest_key(outputs[0][1].digest) not in keys(store)
    assert blob_key(outputs[0][1].blobs[0].sha256) not in keys(store)
    assert dangling(store) == [], "a trainer state that was collected on purpose is no fault"


def test_a_trainer_state_that_another_run_keeps_stays(store, put) -> None:
    states = [put(store, {"adam": b"moments %d" % round}, kind="trainer_state") for round in (1, 2)]
    for round, state in enumerate(states, 1):
        record(store, "long", round, {"updated_trainer_state": state.digest})
    record(store, "short", 1, {"updated_trainer_state": states[0].digest})
    gc(store, keep_trainer_states=1)
    assert store.get_manifest(states[0].digest) == states[0]


def test_a_forgotten_run_goes_with_what_it_alone_refers_to(store, put) -> None:
    shared = put(store, {"w": b"shared"})
    own = put(store, {"w": b"own"})
    record(store, "kept", 1, {"updated_policy": shared.digest})
    record(store, "forgotten", 2, {"updated_policy": own.digest, "more": shared.digest})
    gc(store, forget_runs=["forgotten"])
    assert store.run_ids() == ["kept"]
    assert {found.key for found in store.backend.list("manifests/")} == {manifest_key(shared.digest)}
    assert store.get_result("2" * 64) is None


def test_forgetting_a_run_that_never_was_is_an_error(store) -> None:
    with pytest.raises(StoreError, match="there is no run 'nothing'"):
        find_garbage(store, forget_runs=["nothing"])


def test_a_crash_at_any_point_leaves_nothing_that_points_to_something_gone(folder_store, put) -> None:
    kept = put(folder_store, {"w": b"kept"})
    record(folder_store, "run", 1, {"updated_policy": kept.digest})
    for number in range(3):
        orphan = put(folder_store, {"w": b"orphan %d" % number, "t": b"shared by orphans"})
        lost = StageRecord(run_id="gone", stage="update", key=f"{number + 5}" * 64, outputs={"p": orphan.digest})
        folder_store.put_result(lost)
    inner = folder_store.backend
    total = len(find_garbage(folder_store, grace_s=-60))
    assert total == 3 + 3 + 4
    for survived in range(total):
        left = {"deletions": 1}

        def die(operation: str, key: str, left: dict[str, int] = left) -> None:
            if operation == "delete":
                if not left["deletions"]:
                    raise KeyboardInterrupt
                left["deletions"] -= 1

        class OneByOne(WatchedBackend):
            def delete(self, keys) -> None:
                for key in keys:
                    super().delete([key])

        folder_store.backend = OneByOne(inner, die)
        if survived < total - 1:
            with pytest.raises(KeyboardInterrupt):
                gc(folder_store)
        else:
            gc(folder_store)
        folder_store.backend = inner
        for found in inner.list("results/"):
            known = folder_store.get_result(found.key.removeprefix("results/").removesuffix(".json"))
            assert known is not None, "a result stays only while all of it does"
        assert dangling(folder_store) == []
    assert len(find_garbage(folder_store, grace_s=-60)) == 0


def test_a_manifest_that_appears_meanwhile_keeps_its_blobs(folder_store, put) -> None:
    first = put(folder_store, {"w": b"weights"})
    for path in folder_store.backend.root.rglob("*"):
        os.utime(path, (0, 0))
    garbage = find_garbage(folder_store, grace_s=3600)
    assert (len(garbage.manifests), len(garbage.blobs)) == (1, 1)
    second = put(folder_store, {"w": b"weights"}, inputs={"policy": first.digest})
    list(collect(folder_store, garbage))
    assert folder_store.get_manifest(second.digest) == second
    assert blob_key(second.blobs[0].sha256) in keys(folder_store)
    assert manifest_key(first.digest) not in keys(folder_store)


def test_a_manifest_that_is_put_again_meanwhile_stays(folder_store, put) -> None:
    put(folder_store, {"w": b"weights"})
    for path in folder_store.backend.root.rglob("*"):
        os.utime(path, (0, 0))
    garbage = find_garbage(folder_store, grace_s=3600)
    again = put(folder_store, {"w": b"weights"})
    list(collect(folder_store, garbage))
    assert folder_store.get_manifest(again.digest) == again
    assert dangling(folder_store) == []
