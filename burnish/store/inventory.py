"""What lies in the store: its runs, and the artifacts of one run, with their sizes."""

from dataclasses import dataclass

from burnish.contracts.artifacts import Manifest
from burnish.contracts.errors import StoreError
from burnish.store.artifacts import ArtifactStore
from burnish.store.backend import MissingObject


@dataclass(frozen=True)
class RunLine:
    """One run."""

    run_id: str
    stages: int
    failed: list[str]
    """Titles of the stages whose last attempt failed."""
    started_at: float
    """Unix time."""
    artifacts: int
    size: int
    """Bytes of its distinct blobs; other runs may share them."""


@dataclass(frozen=True)
class ArtifactLine:
    """One output of one stage."""

    stage: str
    """Title, e.g. `round 3 - update`."""
    output: str
    digest: str
    kind: str | None
    """None: the artifact was collected."""
    files: int
    size: int
    """Bytes."""
    counts: dict[str, int]


@dataclass(frozen=True)
class Totals:
    """The whole store."""

    runs: list[RunLine]
    blobs: int
    size: int
    """Bytes of all blobs, whoever uses them."""


def list_runs(store: ArtifactStore) -> Totals:
    """Every run, the oldest first, and what the store holds altogether."""
    runs = [_run_line(store, run_id) for run_id in store.run_ids()]
    blobs = list(store.backend.list("blobs/"))
    return Totals(
        sorted(runs, key=lambda run: (run.started_at, run.run_id)), len(blobs), sum(blob.size for blob in blobs)
    )


def list_artifacts(store: ArtifactStore, run_id: str) -> list[ArtifactLine]:
    """Every artifact of a run in the order in which its stages started. Raises StoreError when there is no such run."""
    records = store.run_records(run_id)
    if not records:
        raise StoreError(f"there is no run {run_id!r} in {store.backend.url}; see burnish store ls")
    lines = []
    for record in records:
        for output, digest in record.outputs.items():
            manifest = _manifest(store, digest)
            lines.append(
                ArtifactLine(
                    stage=record.title,
                    output=output,
                    digest=digest,
                    kind=manifest.kind if manifest else None,
                    files=len(manifest.blobs) if manifest else 0,
                    size=manifest.size if manifest else 0,
                    counts=manifest.counts if manifest else {},
                )
            )
    return lines


def _run_line(store: ArtifactStore, run_id: str) -> RunLine:
    records = store.run_records(run_id)
    digests = {digest for record in records for digest in record.outputs.values()}
    manifests = [manifest for digest in sorted(digests) if (manifest := _manifest(store, digest))]
    sizes = {blob.sha256: blob.size for manifest in manifests for blob in manifest.blobs}
    return RunLine(
        run_id=run_id,
        stages=len(records),
        failed=[record.title for record in records if record.error],
        started_at=min((record.started_at for record in records), default=0.0),
        artifacts=len(manifests),
        size=sum(sizes.values()),
    )


def _manifest(store: ArtifactStore, digest: str) -> Manifest | None:
    try:
        return store.get_manifest(digest)
    except MissingObject:
        return None
