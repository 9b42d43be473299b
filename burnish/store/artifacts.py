"""Artifacts in and out of the store: blobs first, manifest last, results only when all of it is there."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from burnish.contracts.artifacts import Blob, Kind, Lineage, Manifest, StageRecord
from burnish.contracts.errors import StoreError
from burnish.store.backend import Backend, CorruptObject, MissingObject
from burnish.store.cache import BlobCache, CacheFull, receive
from burnish.store.folder import is_full, os_reason, whole_file

_THREADS = 4
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ArtifactStore:
    """Artifacts, results and run records over one backend, with the node's cache in front of it."""

    def __init__(self, backend: Backend, cache: BlobCache) -> None:
        self.backend = backend
        self.cache = cache

    def put_artifact(
        self,
        kind: Kind,
        folder: Path,
        *,
        lineage: Lineage,
        counts: Mapping[str, int],
        metadata: Mapping[str, Any],
    ) -> Manifest:
        """Publish the files of `folder` and return the manifest that names them.

        The files also go into the node's cache, where possible by hard link, so they must not be written to again.
        Raises StoreError.
        """
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        with ThreadPoolExecutor(_THREADS) as pool:
            blobs = list(pool.map(lambda path: _describe(folder, path), files))
            # Equal files of one artifact are one blob.
            sources = list({blob.sha256: (blob, path) for blob, path in zip(blobs, files, strict=True)}.values())
            uploaded = list(pool.map(self._put_blob, sources))
            manifest = Manifest(kind=kind, blobs=blobs, lineage=lineage, counts=dict(counts), metadata=dict(metadata))
            self.put_manifest(manifest)
            # A collection that began before the manifest was there may have taken blobs that were found in place.
            list(pool.map(self._put_blob, (source for source, new in zip(sources, uploaded, strict=True) if not new)))
        self.cache.trim()
        return manifest

    def put_manifest(self, manifest: Manifest) -> None:
        self.backend.put_bytes(manifest_key(manifest.digest), manifest.to_json().encode())

    def get_manifest(self, digest: str) -> Manifest:
        """Raises MissingObject, CorruptObject."""
        key = manifest_key(digest)
        text = self.backend.get_bytes(key)
        if hashlib.sha256(text).hexdigest() != digest:
            raise CorruptObject(
                f"manifest {key} in {self.backend.url} is corrupt; the run's own command writes it anew"
            )
        return Manifest.from_json(text, key)

    def fetch(self, manifest: Manifest, into: Path) -> None:
        """Put the artifact's files under `into`, read-only, downloading what the node's cache lacks.

        Past a full cache, straight into `into`. Raises StoreError naming artifact and key when a blob is missing or
        corrupt, or the folder when its disk is full.
        """
        into.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_THREADS) as pool:
            for blob in manifest.blobs:
                try:
                    self._fetch_cached(manifest, blob, into / blob.path, pool)
                except CacheFull:
                    self._fetch_past_cache(manifest, blob, into, pool)
        self.cache.trim()

    def _fetch_cached(self, manifest: Manifest, blob: Blob, target: Path, pool: ThreadPoolExecutor) -> None:
        for _ in range(3):  # another process may trim the cache right after a download
            if self.cache.materialise(blob, target):
                return
            with self._explained(manifest, blob) as key:
                try:
                    self.cache.download(blob, self.backend, key, pool)
                except CorruptObject:  # or only on its way here
                    self.cache.download(blob, self.backend, key, pool)
                except CacheFull:
                    if not self.cache.trim(0.0):
                        raise
        raise StoreError(
            f"cache folder {self.cache.root} does not keep what is written to it; "
            "set BURNISH_CACHE to a folder on a local disk"
        )

    def _fetch_past_cache(self, manifest: Manifest, blob: Blob, into: Path, pool: ThreadPoolExecutor) -> None:
        try:
            with self._explained(manifest, blob) as key, whole_file(into / blob.path) as temporary:
                receive(blob, self.backend, key, pool, temporary)
        except OSError as error:
            full = f"the disk is full, and that of the cache {self.cache.root} too"
            reason = f"{full}; set TMPDIR or BURNISH_CACHE to a folder on a larger one"
            raise StoreError(f"folder {into}: {reason if is_full(error) else os_reason(error)}") from None

    def get_result(self, key: str) -> StageRecord | None:
        """The record of an earlier stage with this key, if everything it wrote is still there.

        What cannot be read counts as not there: the stage runs again and writes it anew.
        """
        try:
            record = parse_record(self.backend.get_bytes(result_key(key)), result_key(key))
            manifests = [self.get_manifest(digest) for digest in record.outputs.values()]
        except (MissingObject, CorruptObject):
            return None
        blobs = {blob.sha256: blob for manifest in manifests for blob in manifest.blobs}
        with ThreadPoolExecutor(_THREADS) as pool:
            present = all(pool.map(self._is_stored, blobs.values()))
        return record if present else None

    def put_result(self, record: StageRecord) -> StageRecord:
        """Remember a finished stage under its key, and return what is remembered.

        A stage may have run twice at the same time: the first result is that of both, so that all who come later
        read the same one. A result that is no longer whole gives way.
        """
        key, text = result_key(record.key), record.model_dump_json().encode()
        if self.backend.put_new(key, text):
            return record
        first = self.get_result(record.key)
        if first:
            return first
        self.backend.put_bytes(key, text)
        return record

    def put_run_record(self, record: StageRecord) -> None:
        """Write what a stage did in its run; a later attempt of the same stage replaces it."""
        slug = re.sub(r"[^a-z0-9]+", "-", record.title.lower()).strip("-")
        self.backend.put_bytes(f"{run_prefix(record.run_id)}{slug}.json", record.model_dump_json().encode())

    def run_records(self, run_id: str) -> list[StageRecord]:
        """What the run's stages left behind, in the order in which they started."""
        keys = [found.key for found in self.backend.list(run_prefix(run_id))]
        with ThreadPoolExecutor(_THREADS) as pool:
            records = list(pool.map(lambda key: parse_record(self.backend.get_bytes(key), key), keys))
        return sorted(records, key=lambda record: (record.started_at, record.title))

    def run_ids(self) -> list[str]:
        """Every run that left a record, sorted."""
        return sorted({found.key.split("/")[1] for found in self.backend.list("runs/")})

    def _put_blob(self, source: tuple[Blob, Path]) -> bool:
        """Whether it had to be uploaded."""
        blob, path = source
        absent = not self._is_stored(blob)
        if absent:
            self.backend.put_file(blob_key(blob.sha256), path)
        with contextlib.suppress(CacheFull):
            self.cache.adopt(blob, path)
        return absent

    def _is_stored(self, blob: Blob) -> bool:
        return self.backend.size(blob_key(blob.sha256)) == blob.size

    @contextlib.contextmanager
    def _explained(self, manifest: Manifest, blob: Blob) -> Iterator[str]:
        """Gives the blob's key; a blob that is missing or corrupt becomes one line that names its artifact too."""
        artifact = f"{manifest.kind} artifact {manifest.digest}, file {blob.path!r}"
        key = blob_key(blob.sha256)
        try:
            yield key
        except MissingObject:
            raise StoreError(
                f"{artifact}: blob {key} is missing from {self.backend.url}; run stage {manifest.lineage.stage!r} again"
            ) from None
        except CorruptObject:
            raise StoreError(
                f"{artifact}: blob {key} in {self.backend.url} is corrupt; `burnish store verify --delete` "
                f"takes it away, then run stage {manifest.lineage.stage!r} again"
            ) from None


def blob_key(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def manifest_key(digest: str) -> str:
    return f"manifests/{_checked(_DIGEST, digest, 'manifest digest')}.json"


def digest_of(key: str) -> str:
    """Digest of the manifest under this key."""
    return key.removeprefix("manifests/").removesuffix(".json")


def result_key(key: str) -> str:
    return f"results/{_checked(_DIGEST, key, 'result key')}.json"


def run_prefix(run_id: str) -> str:
    return f"runs/{_checked(_RUN_ID, run_id, 'run id')}/"


def _checked(pattern: re.Pattern[str], value: str, name: str) -> str:
    # Keys are built from what a bucket or a command line says; none of it may leave its folder.
    if not pattern.fullmatch(value):
        raise StoreError(f"{name} {value!r} is not of the form {pattern.pattern}")
    return value


def _describe(folder: Path, path: Path) -> Blob:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Blob(path=path.relative_to(folder).as_posix(), sha256=digest, size=path.stat().st_size)


def parse_record(text: bytes, key: str) -> StageRecord:
    try:
        return StageRecord.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptObject(
            f"record {key} cannot be read ({reason}); another burnish version may have left it"
        ) from None
