"""Shards of a stage's result become the one artifact that a single pod would have made, row for row.

So the stages after it, remembered results and reports know nothing of shards. It is no stage of its own: it leaves the
record of the stage whose shards it gathers.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import Manifest, StageRecord, stage_title
from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.parquet import iter_records, write_records
from burnish.contracts.records import Execution, Rollout
from burnish.contracts.shards import SHARD, SHARD_OF, Shard
from burnish.contracts.stages import STAGES
from burnish.stages import keys
from burnish.stages.attempt import failure_recorded, work_folder
from burnish.stages.execute_figures import ExecutionTally
from burnish.stages.progress import announce, process_age
from burnish.stages.rollout_figures import RolloutTally
from burnish.store import ArtifactStore
from burnish.track.load import asked_resources

Row = Rollout | Execution


def gather(name: str, parts: Sequence[Manifest], store: ArtifactStore, run_id: str) -> tuple[StageRecord, Manifest]:
    """The record and the result of stage `name` (rollout or execute), from those of all its shards.

    Raises ContractError when a shard is missing, is there twice or is of another result, and when a row is there
    twice.
    """
    started_at, start_seconds = time.time(), process_age()
    before = time.perf_counter()
    digests = sorted(part.digest for part in parts)
    key = hashlib.sha256(" ".join(["gather", name, keys.code_digest(), *digests]).encode()).hexdigest()
    round = parts[0].lineage.round if parts else None
    title = stage_title(name, round)
    known = store.get_result(key)
    if known:
        announce(f"{title}: shards were gathered already")
        record = known.model_copy(update={"run_id": run_id, "cached": True, "cached_from": known.run_id})
        store.put_run_record(record)
        return record, store.get_manifest(next(iter(known.outputs.values())))
    failed = StageRecord(
        run_id=run_id, stage=name, round=round, key=key, started_at=started_at,
        image=os.environ.get("BURNISH_IMAGE", ""), resources=asked_resources(),
    )  # fmt: skip
    with failure_recorded(store, failed), work_folder("gather") as folder:
        shards = check_shards(name, parts)
        records = _shard_records(name, shards, store, run_id)
        whole, metrics = _GATHERED[name](shards, store, folder, records)
    stopped = bool(whole.metadata.get("stopped"))
    seconds = [shard.timings.get("total", 0.0) for shard in records]
    if seconds:
        metrics |= {"shards": float(len(shards)), "shards/slowest_s": max(seconds), "shards/fastest_s": min(seconds)}
    record = failed.model_copy(
        update={
            "outputs": {output: whole.digest for output in STAGES[name].writes},
            "metrics": {} if stopped else metrics,
            "skipped": stopped,
            "timings": {"start": start_seconds, "total": start_seconds + time.perf_counter() - before},
            "finished_at": time.time(),
        }
    )
    store.put_result(record)
    store.put_run_record(record)
    announce(f"{title}: {len(shards)} shards gathered")
    return record, whole


def check_shards(name: str, parts: Sequence[Manifest]) -> list[Manifest]:
    """`parts` in the order of their shards. Raises ContractError unless they are all shards of one result of `name`."""
    kind = next(iter(STAGES[name].writes.values()))
    found: dict[Shard, Manifest] = {}
    for part in parts:
        what = f"{name}: artifact {part.digest[:12]}"
        if part.kind != kind or SHARD not in part.metadata:
            raise ContractError(f"{what} is no shard of {kind}; it is of kind {part.kind}")
        shard = Shard.parse(str(part.metadata[SHARD]))
        if shard in found:
            raise ContractError(f"{name}: shard {shard} is there twice; run the round's {name} shards again")
        found[shard] = part
    if not found:
        raise ContractError(f"{name}: there are no shards to gather; set rollout.shards to 1 or more")
    shards = sorted(found, key=lambda shard: (shard.count, shard.index))
    for about, of in _SAME.items():
        said = {shard: of(found[shard]) for shard in shards}
        # Of a round that was stopped, no policy drew the shards.
        known = [shard for shard in shards if said[shard] is not None]
        other = next((shard for shard in known if said[shard] != said[known[0]]), None)
        if other:
            raise ContractError(
                f"{name}: shard {known[0]} has {about} {said[known[0]]}, shard {other} has {said[other]}; "
                f"all must come from one run of the round: run its {name} shards again"
            )
    missing = sorted(set(range(1, shards[0].count + 1)) - {shard.index for shard in shards})
    if missing:
        raise ContractError(f"{name}: shard {missing[0]}/{shards[0].count} is missing; run it again")
    return [found[shard] for shard in shards]


_SAME: dict[str, Callable[[Manifest], Any]] = {
    "a number of shards of": lambda part: Shard.parse(str(part.metadata[SHARD])).count,
    "round": lambda part: part.lineage.round,
    "policy_version": lambda part: part.metadata.get("policy_version"),
    "inputs, settings and code": lambda part: part.metadata.get(SHARD_OF),
}
"""What all shards of a result agree on."""


def _gather_rollouts(
    shards: Sequence[Manifest], store: ArtifactStore, folder: Path, records: Sequence[StageRecord]
) -> tuple[Manifest, dict[str, float | None]]:
    tally = RolloutTally()
    whole = _publish(shards, store, folder, "rollouts", Rollout, tally.counting, tally.counts)
    if not tally.samples and not whole.metadata.get("stopped"):
        raise StageError("rollout: all samples of all shards were aborted: the policy's logits are not finite")
    measured = [record.metrics for record in records]
    seconds = [found.get("seconds") or 0.0 for found in measured]
    metrics = tally.metrics(
        aborted=sum(found.get("aborted") or 0.0 for found in measured), seconds=max(seconds, default=0.0)
    )
    # What rows do not tell, such as the probe's gap: the worst of the shards.
    rest = {name for found in measured for name in found} - metrics.keys()
    return whole, metrics | {name: _largest(found.get(name) for found in measured) for name in sorted(rest)}


def _gather_executions(
    shards: Sequence[Manifest], store: ArtifactStore, folder: Path, records: Sequence[StageRecord]
) -> tuple[Manifest, dict[str, float | None]]:
    tally = ExecutionTally()
    whole = _publish(shards, store, folder, "executions", Execution, tally.counting, lambda: {"rows": tally.executions})
    return whole, tally.metrics()


_GATHERED = {"rollout": _gather_rollouts, "execute": _gather_executions}


def _publish(
    shards: Sequence[Manifest],
    store: ArtifactStore,
    folder: Path,
    output: str,
    row_type: type[Any],
    counting: Callable[[Iterable[Any]], Iterator[Any]],
    counts: Callable[[], Mapping[str, int]],
) -> Manifest:
    """The artifact of all rows; one that says so when the run was stopped."""
    metadata = {name: value for name, value in shards[0].metadata.items() if name not in (SHARD, SHARD_OF)}
    target = folder / "whole"
    target.mkdir()
    stopped = any(shard.metadata.get("stopped") for shard in shards)
    if not stopped:
        paths = {}
        for shard in shards:
            text = str(shard.metadata[SHARD])
            store.fetch(shard, folder / text.replace("/", "-of-"))
            paths[text] = folder / text.replace("/", "-of-") / f"{output}.parquet"
        rows = counting(in_order({text: iter_records(path, row_type) for text, path in paths.items()}))
        write_records(target / f"{output}.parquet", rows, row_type)
        _check_counts(shards, dict(counts()))
    return store.put_artifact(
        shards[0].kind,
        target,
        lineage=shards[0].lineage,
        counts={} if stopped else counts(),
        metadata={"stopped": True} if stopped else metadata,
    )


def in_order(shards: Mapping[str, Iterable[Row]]) -> Iterator[Row]:
    """Rows of all shards in the order of their sample ids, which each shard's own rows are in.

    Raises ContractError when a sample is there twice or a shard is out of order.
    """

    def keyed(text: str, rows: Iterable[Row]) -> Iterator[tuple[tuple[Any, ...], str, Row]]:
        return ((natural(row.sample_id), text, row) for row in rows)

    before: tuple[tuple[Any, ...], str, str] | None = None
    for key, text, row in merge(*(keyed(*shard) for shard in shards.items()), key=lambda found: found[0]):
        if before and key <= before[0]:
            raise ContractError(
                f"sample {row.sample_id} of shard {text} comes after {before[2]} of shard {before[1]}: "
                "it is there twice, or the shard is not in the order of its ids"
            )
        before = (key, text, row.sample_id)
        yield row


def natural(text: str) -> tuple[Any, ...]:
    """`r1-g10-s2` sorts after `r1-g9-s2`: numbers inside of ids count as numbers."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text))


def _check_counts(shards: Sequence[Manifest], counts: Mapping[str, int]) -> None:
    for name, found in counts.items():
        said = sum(shard.counts.get(name, 0) for shard in shards)
        if said != found:
            raise ContractError(f"shards of {shards[0].kind} hold {found} {name}, and their manifests say {said}")


def _shard_records(name: str, shards: Sequence[Manifest], store: ArtifactStore, run_id: str) -> list[StageRecord]:
    """Records of the shards: what rows do not tell is in their metrics."""
    digests = {shard.digest for shard in shards}
    return [
        record
        for record in store.run_records(run_id)
        if record.stage == name and record.shard and digests & set(record.outputs.values())
    ]


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
