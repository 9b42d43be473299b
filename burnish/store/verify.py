"""Is what the store holds what it says it holds? Every manifest is read and every blob hashed again."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.errors import ContractError, StoreError
from burnish.contracts.stages import STAGES
from burnish.store.artifacts import ArtifactStore, blob_key, digest_of, manifest_key
from burnish.store.backend import CorruptObject, MissingObject

_THREADS = 4


@dataclass(frozen=True)
class Check:
    """One object that was looked at."""

    key: str
    size: int
    """Bytes read."""
    fault: str | None
    """What is wrong with it and where it is used; None: it is sound."""
    corrupt: bool = False
    """There, with other bytes than its name says: in the way of whoever would write it again."""


@dataclass(frozen=True)
class Inspection:
    """What there is to check: manifests were read already, blobs are hashed while `run` is iterated."""

    store: ArtifactStore
    manifest_faults: list[Check]
    blobs: dict[str, str]
    """What uses each blob, for people, by digest; a blob that nothing uses is there too when all are checked."""

    def run(self) -> Iterator[Check]:
        """Hash the blobs, a few at a time; manifests that are missing or corrupt come first."""
        yield from self.manifest_faults
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(self._check, self.blobs.items())

    def _check(self, blob: tuple[str, str]) -> Check:
        sha256, used_by = blob
        key = blob_key(sha256)
        digest = hashlib.sha256()
        size = self.store.backend.size(key)
        if size is None:
            return Check(key, 0, f"missing, {used_by}")
        for piece in self.store.backend.get_range(key, 0, size):
            digest.update(piece)
        corrupt = digest.hexdigest() != sha256
        return Check(key, size, f"corrupt, {used_by}" if corrupt else None, corrupt)


def inspect(store: ArtifactStore, run_id: str | None = None) -> Inspection:
    """All of the store, or what one run wrote. Raises StoreError when the run is unknown."""
    run_ids = store.run_ids() if run_id is None else [run_id]
    records = [record for identifier in run_ids for record in store.run_records(identifier)]
    if run_id is not None and not records:
        raise StoreError(f"there is no run {run_id!r} in {store.backend.url}; see burnish store ls")
    used_by = {
        digest: f"output {output!r} of {record.title!r} in run {record.run_id}"
        for record in records
        for output, digest in record.outputs.items()
    }
    collected = _may_be_collected(records)
    if run_id is None:
        for found in store.backend.list("manifests/"):
            used_by.setdefault(digest_of(found.key), "used by no run")
    faults: list[Check] = []
    blobs: dict[str, str] = {}
    for digest, place in used_by.items():
        try:
            manifest = store.get_manifest(digest)
        except MissingObject:
            if digest not in collected:
                faults.append(Check(manifest_key(digest), 0, f"missing, {place}"))
        except (CorruptObject, ContractError):
            faults.append(Check(manifest_key(digest), 0, f"corrupt, {place}", corrupt=True))
        else:
            blobs |= {blob.sha256: f"{_name(manifest, digest)}, {place}" for blob in manifest.blobs}
    if run_id is None:
        for found in store.backend.list("blobs/"):
            blobs.setdefault(found.key.rpartition("/")[2], "used by no artifact")
    return Inspection(store, faults, blobs)


def _may_be_collected(records: list[StageRecord]) -> set[str]:
    """Trainer states, which `gc --keep-trainer-states` takes away from runs on purpose."""
    return {
        digest
        for record in records
        for output, digest in record.outputs.items()
        if record.stage in STAGES and STAGES[record.stage].writes.get(output) == "trainer_state"
    }


def _name(manifest: Manifest, digest: str) -> str:
    return f"of {manifest.kind} artifact {digest[:12]}"
