"""Garbage collection: what no run refers to goes, results first, then manifests, then blobs.

So a crash in between leaves nothing that points to something gone. What is younger than the grace period stays: a
stage may be about to refer to it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.errors import StoreError
from burnish.contracts.stages import STAGES
from burnish.store.artifacts import ArtifactStore, blob_key, digest_of, parse_record, run_prefix
from burnish.store.backend import MissingObject, StoredObject

_BATCH = 500
_CLOCK = "gc/clock"


@dataclass(frozen=True)
class Garbage:
    """What can go, in the order in which it has to go."""

    limit: float
    """Unix time; what was written later stays."""
    records: list[StoredObject]
    """Of runs that are to be forgotten."""
    results: list[StoredObject]
    manifests: list[StoredObject]
    blobs: list[StoredObject]
    unfinished: list[StoredObject]
    """Writes that were begun and never finished."""

    @property
    def size(self) -> int:
        """Bytes of the blobs."""
        return sum(blob.size for blob in self.blobs)

    def __len__(self) -> int:
        return len(self.records) + len(self.results) + len(self.manifests) + len(self.blobs) + len(self.unfinished)


def find_garbage(
    store: ArtifactStore,
    *,
    grace_s: float = 86400.0,
    keep_trainer_states: int | None = None,
    forget_runs: Iterable[str] = (),
) -> Garbage:
    """What no run refers to and what is older than `grace_s` seconds.

    `keep_trainer_states`: of each run's trainer states only so many, the newest, count as referred to; the rounds
    before them can then be looked at but not resumed. `forget_runs`: their records go too, however young.
    Raises StoreError, also when a run to forget is unknown.
    """
    forgotten = set(forget_runs)
    run_ids = set(store.run_ids())
    unknown = sorted(forgotten - run_ids)
    if unknown:
        raise StoreError(f"there is no run {unknown[0]!r} in {store.backend.url}; see burnish store ls")
    limit = _store_time(store) - grace_s
    # Listed before the runs are read: what appears meanwhile is not in the lists, and so stays.
    blobs, manifests, results = (list(store.backend.list(prefix)) for prefix in ("blobs/", "manifests/", "results/"))
    kept = {
        digest for run_id in run_ids - forgotten for digest in _outputs(store.run_records(run_id), keep_trainer_states)
    } | {digest_of(manifest.key) for manifest in manifests if manifest.modified >= limit}
    kept_blobs = _blobs_of(store, kept)
    doomed_results = [
        result for result in results if result.modified < limit and not _outputs_of_result(store, result) <= kept
    ]
    return Garbage(
        limit=limit,
        records=[record for run_id in sorted(forgotten) for record in store.backend.list(run_prefix(run_id))],
        results=doomed_results,
        manifests=[found for found in manifests if found.modified < limit and digest_of(found.key) not in kept],
        blobs=[found for found in blobs if found.modified < limit and found.key not in kept_blobs],
        unfinished=[found for found in store.backend.unfinished() if found.modified < limit],
    )


def collect(store: ArtifactStore, garbage: Garbage) -> Iterator[str]:
    """Delete it, a batch at a time; after each batch a line says how far it is.

    Stays: a manifest that was written once more since `find_garbage`, and the blobs of all that were written since.
    """
    for name, objects in (
        ("run records", garbage.records),
        ("results", garbage.results),
        ("manifests", garbage.manifests),
        ("blobs", garbage.blobs),
    ):
        spared: set[str] = set()
        if objects and name in {"manifests", "blobs"}:
            young = {
                manifest.key for manifest in store.backend.list("manifests/") if manifest.modified >= garbage.limit
            }
            spared = young | _blobs_of(store, map(digest_of, young))
        keys = [found.key for found in objects if found.key not in spared]
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            store.backend.delete(batch)
            yield f"{name}: {start + len(batch)} of {len(keys)} deleted"
    if garbage.unfinished:
        store.backend.drop_unfinished(found.key for found in garbage.unfinished)
        yield f"unfinished writes: {len(garbage.unfinished)} deleted"


def _store_time(store: ArtifactStore) -> float:
    """Unix time by the clock that dates the objects: ours may be hours away from it."""
    store.backend.put_bytes(_CLOCK, b"")
    [moment] = [found.modified for found in store.backend.list("gc/")]
    return moment


def _outputs(records: list[StageRecord], keep_trainer_states: int | None) -> set[str]:
    """Digests that a run refers to."""
    outputs = {digest for record in records for digest in record.outputs.values()}
    if keep_trainer_states is None:
        return outputs
    states: dict[str, None] = {}
    # By round: their pods' clocks may disagree.
    for record in sorted(records, key=lambda record: record.round or 0):
        for output, digest in record.outputs.items():
            if record.stage in STAGES and STAGES[record.stage].writes.get(output) == "trainer_state":
                states.pop(digest, None)
                states[digest] = None
    return outputs - set(list(states)[: max(0, len(states) - keep_trainer_states)])


def _blobs_of(store: ArtifactStore, digests: Iterable[str]) -> set[str]:
    """Keys of the blobs that these manifests name, as far as the manifests are there."""
    keys: set[str] = set()
    for digest in digests:
        try:
            manifest = store.get_manifest(digest)
        except MissingObject:
            continue
        keys |= {blob_key(blob.sha256) for blob in manifest.blobs}
    return keys


def _outputs_of_result(store: ArtifactStore, result: StoredObject) -> set[str]:
    try:
        return set(parse_record(store.backend.get_bytes(result.key), result.key).outputs.values())
    except MissingObject:
        return set()
