"""Runs that go on, or did a while ago, as their stages' records in the store tell; read again only where they changed.

Nothing is written, so a key that may list and get is enough.
"""

from dataclasses import dataclass

import yaml

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.contracts.loading import parse_config
from burnish.store import ArtifactStore
from burnish.store.artifacts import blob_key, parse_record
from burnish.store.backend import CorruptObject, MissingObject, StoredObject

_REPORT = "report.json"


@dataclass(frozen=True)
class WatchedRun:
    """One run, as far as it got."""

    run_id: str
    records: list[StageRecord]
    """In the order in which their stages started."""
    config: RunConfig | None
    """None: validate has not finished, or wrote it in a layout that this version does not know."""
    progressed: float
    """When a stage last left a record: Unix time, by the store's clock."""
    over: bool
    """The report, which every run ends with, is the last of its records."""


class RunWatcher:
    """Reads the runs of `store` that left a record in the last `active_s` seconds, the newest `max_runs` of them."""

    def __init__(self, store: ArtifactStore, active_s: float, max_runs: int) -> None:
        self.unreadable = 0
        """Records of the last scan that are none, or of another version."""
        self._store = store
        self._active_s = active_s
        self._max_runs = max_runs
        self._records: dict[StoredObject, StageRecord | None] = {}
        self._configs: dict[str, RunConfig | None] = {}

    def scan(self, now: float) -> list[WatchedRun]:
        """The runs at Unix time `now`, the newest first. Raises StoreError when the store does not answer."""
        found: dict[str, list[StoredObject]] = {}
        for item in self._store.backend.list("runs/"):
            parts = item.key.split("/")
            if len(parts) == 3 and item.key.endswith(".json"):
                found.setdefault(parts[1], []).append(item)
        newest = {run_id: max(item.modified for item in items) for run_id, items in found.items()}
        active = [run_id for run_id, moment in newest.items() if moment >= now - self._active_s]
        active = sorted(active, key=lambda run_id: (-newest[run_id], run_id))[: self._max_runs]
        wanted = [item for run_id in active for item in found[run_id]]
        # An item names its size and its time, so one that was written again is another one.
        self._records = {item: self._records[item] if item in self._records else self._read(item) for item in wanted}
        self.unreadable = sum(record is None for record in self._records.values())
        runs = [self._run(run_id, found[run_id]) for run_id in active]
        used = {_resolved(run.records) for run in runs}
        self._configs = {digest: config for digest, config in self._configs.items() if digest in used}
        return runs

    def _run(self, run_id: str, items: list[StoredObject]) -> WatchedRun:
        read = [record for item in items if (record := self._records[item])]
        records = sorted(read, key=lambda record: (record.started_at, record.title))
        last = max(items, key=lambda item: item.modified)
        return WatchedRun(run_id, records, self._config(records), last.modified, last.key.endswith(f"/{_REPORT}"))

    def _read(self, item: StoredObject) -> StageRecord | None:
        try:
            return parse_record(self._store.backend.get_bytes(item.key), item.key)
        except (CorruptObject, MissingObject):
            return None

    def _config(self, records: list[StageRecord]) -> RunConfig | None:
        digest = _resolved(records)
        if digest and digest not in self._configs:
            self._configs[digest] = self._read_config(digest)
        return self._configs.get(digest)

    def _read_config(self, digest: str) -> RunConfig | None:
        try:
            (blob,) = self._store.get_manifest(digest).blobs
            return parse_config(yaml.safe_load(self._store.backend.get_bytes(blob_key(blob.sha256))))
        # Not there any more, or written by another version.
        except (CorruptObject, MissingObject, ConfigError, ContractError, yaml.YAMLError, ValueError):
            return None


def _resolved(records: list[StageRecord]) -> str:
    return next((record.outputs["resolved"] for record in records if "resolved" in record.outputs), "")
