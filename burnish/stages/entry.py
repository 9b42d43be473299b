"""How every stage is entered, on a laptop, in a container and in a pod: one function, `run_stage`.

It reads manifests, looks whether the result is already known, runs the stage's module, publishes blobs before
manifests, and leaves a StageRecord. Stage modules hold only what is theirs.
"""

import hashlib
import importlib
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import Lineage, Manifest, StageRecord, stage_title
from burnish.contracts.config import RunConfig
from burnish.contracts.cost import beyond_budget
from burnish.contracts.errors import ContractError, StoreError
from burnish.contracts.loading import load_config
from burnish.contracts.shards import SHARD, SHARD_OF, Shard
from burnish.contracts.stages import STAGES, Stage
from burnish.stages import keys
from burnish.stages.attempt import failure_recorded, work_folder, write_manifests
from burnish.stages.progress import announce, process_age
from burnish.store import ArtifactStore, open_store
from burnish.track.load import LoadSampler, asked_resources
from burnish.track.sync import sync_run


@dataclass
class StageResult:
    """What a stage's `run` returns; its files lie in `context.output_dir(name)`."""

    metrics: dict[str, float | None] = field(default_factory=dict)
    series: list[dict[str, float | None]] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of each output artifact, by output name."""
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metadata of each output artifact, by output name."""
    reused: dict[str, str] = field(default_factory=dict)
    """Digest of the existing manifest that is an output, by output name; its output_dir is then not looked at."""


@dataclass
class StageContext:
    """What a stage's `run` gets."""

    stage: Stage
    config: RunConfig
    """Only the sections the stage declares are readable."""
    run_id: str
    round: int | None
    label: str
    store: ArtifactStore
    inputs: dict[str, Manifest]
    workdir: Path
    shard: str = ""
    """`2/3`: which part of the work is this pod's; empty: all."""
    timings: dict[str, float] = field(default_factory=lambda: {"download": 0.0})

    @property
    def title(self) -> str:
        return stage_title(self.stage.name, self.round, self.label, self.shard)

    @property
    def seed(self) -> int:
        """Seed of this use of the stage: different in every round, the same in every attempt and in every shard."""
        text = f"{self.config.seed}/{self.stage.name}/{self.round}/{self.label}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31

    def own(self, group_ids: Iterable[str]) -> set[str]:
        """Those of `group_ids` that are this pod's."""
        return Shard.parse(self.shard).of(group_ids) if self.shard else set(group_ids)

    def input_dir(self, name: str, *, weights: bool = True) -> Path:
        """The files of input `name` in a local folder, read-only; without safetensors files unless `weights`."""
        folder = self.workdir / ("in" if weights else "in-light") / name
        if not folder.exists():
            started = time.perf_counter()
            blobs = [blob for blob in self.inputs[name].blobs if weights or not blob.path.endswith(".safetensors")]
            self.store.fetch(self.inputs[name].model_copy(update={"blobs": blobs}), folder)
            self.timings["download"] += time.perf_counter() - started
        return folder

    def output_dir(self, name: str) -> Path:
        """The folder whose files become output `name`."""
        if name not in self.stage.writes:
            raise KeyError(f"{self.stage.name} does not declare an output {name!r}")
        folder = self.workdir / "out" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def run_stage(
    name: str,
    *,
    config_path: str,
    run_id: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    round: int | None = None,
    label: str = "",
    shard: str = "",
    overrides: tuple[str, ...] = (),
) -> StageRecord:
    """Run stage `name`. `inputs` and `outputs` map artifact names to paths of manifest files.

    `round` counts in the DAG; a run that goes on from an earlier one adds the rounds before. With a `shard` (2/3) only
    that part of the work is done, for burnish/stages/gather.py to put together with the others.
    Raises BurnishError for anything a person can fix; the record of the failure is in the store by then.
    """
    start_seconds = process_age()
    started_at = time.time()
    clock = time.perf_counter()
    stage = STAGES[name]
    manifests = {key: _read_manifest(stage, key, Path(path)) for key, path in inputs.items()}
    _check_names(stage, manifests, outputs)
    store = open_store()
    config = load_resolved(Path(config_path), overrides, store)
    if round is not None:
        round += config.start.round
    _refer_to_start(manifests, config, store)
    key = keys.result_key(stage, config, manifests, round, label, shard)
    part = {SHARD: shard, SHARD_OF: keys.result_key(stage, config, manifests, round, label)[:16]} if shard else {}
    timings: dict[str, float] = {"start": start_seconds}
    title = stage_title(name, round, label, shard)

    known = store.get_result(key) if stage.remembered else None
    if known:
        announce(f"{title}: result is known, nothing to do")
        record = _remembered(known, run_id)
        write_manifests({output: store.get_manifest(digest) for output, digest in known.outputs.items()}, outputs)
        store.put_run_record(record)
        return record
    stopped = any(manifest.metadata.get("stopped") for manifest in manifests.values())
    stop_reason = None
    if stage.begins_round and not stopped and config.cost.budget is not None:
        stop_reason = beyond_budget(store.run_records(run_id), config.cost, round or 1, config.start.round)
    if stopped or stop_reason:
        announce(f"{title}: {stop_reason or 'the run was stopped, nothing to do'}")
        written = _pass_on(stage, manifests, store, round, part)
        record = StageRecord(
            run_id=run_id, stage=name, label=label, round=round, shard=shard, key=key, skipped=True,
            stop_reason=stop_reason or "", resources=asked_resources(),
            outputs={output: manifest.digest for output, manifest in written.items()},
            started_at=started_at, finished_at=time.time(), timings=timings,
        )  # fmt: skip
        store.put_run_record(record)
        write_manifests(written, outputs)
        return record

    announce(f"{title}: started")
    failed = StageRecord(
        run_id=run_id, stage=name, label=label, round=round, shard=shard, key=key, started_at=started_at,
        image=os.environ.get("BURNISH_IMAGE", ""), resources=asked_resources(),
    )  # fmt: skip
    with failure_recorded(store, failed), work_folder(name) as folder, LoadSampler() as load:
        view = config.view(stage.sections)
        context = StageContext(stage, view, run_id, round, label, store, manifests, folder, shard)
        before_import = time.perf_counter()
        module = importlib.import_module(f"burnish.stages.{name}")
        timings["import"] = time.perf_counter() - before_import
        before_compute = time.perf_counter()
        result: StageResult = module.run(context)
        timings["compute"] = time.perf_counter() - before_compute - context.timings["download"]
        before_upload = time.perf_counter()
        written = _publish(context, result, part)
        timings["upload"] = time.perf_counter() - before_upload
        timings |= context.timings
    timings["total"] = time.perf_counter() - clock + start_seconds
    record = failed.model_copy(
        update={
            "outputs": {output: manifest.digest for output, manifest in written.items()},
            "metrics": result.metrics,
            "series": result.series,
            "timings": timings,
            "peak_memory_mb": _peak_memory_mb(),
            "load": load.rows,
            "finished_at": time.time(),
        }
    )
    if stage.remembered:
        first = store.put_result(record)
        if first != record:
            announce(f"{title}: another attempt was done first, its result is taken")
            record = _remembered(first, run_id)
            written = {output: store.get_manifest(digest) for output, digest in record.outputs.items()}
    store.put_run_record(record)
    write_manifests(written, outputs)
    if stage.tracked:
        _bring_mlflow_up_to_date(store, run_id, config, title)
    announce(f"{title}: done in {timings['total']:.1f} s")
    return record


def _remembered(record: StageRecord, run_id: str) -> StageRecord:
    return record.model_copy(update={"run_id": run_id, "cached": True, "cached_from": record.run_id})


def _peak_memory_mb() -> float:
    """Of this process or of the largest it started, such as a rank."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def _bring_mlflow_up_to_date(store: ArtifactStore, run_id: str, config: RunConfig, title: str) -> None:
    """MLflow being away costs a line, never the stage: the records stay in the store for the next sync."""
    try:
        result = sync_run(store.run_records(run_id), run_id, config)
    except StoreError as error:
        announce(f"{title}: MLflow: the run's records cannot be read: {error}; they are left for the next sync")
        return
    if result and result.problem:
        announce(f"{title}: MLflow: {result.problem}; {result.left} records are left for the next sync")


def load_resolved(path: Path, overrides: tuple[str, ...], store: ArtifactStore) -> RunConfig:
    """From a YAML file, or from the manifest that validate wrote."""
    if path.suffix in {".yaml", ".yml"}:
        return load_config(path, overrides)
    manifest = Manifest.from_json(path.read_bytes(), str(path))
    with tempfile.TemporaryDirectory(prefix="burnish-config-") as folder:
        store.fetch(manifest, Path(folder) / "config")
        return load_config(Path(folder) / "config" / "config.yaml", overrides)


def _read_manifest(stage: Stage, name: str, path: Path) -> Manifest:
    if name not in stage.reads:
        raise ContractError(f"{stage.name} has no input {name!r}; it reads {', '.join(stage.reads) or 'nothing'}")
    try:
        manifest = Manifest.from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ContractError(f"{stage.name}: input {name!r}: cannot read manifest {str(path)!r}: {error}") from None
    if manifest.kind != stage.reads[name]:
        raise ContractError(f"{stage.name}: input {name!r} is a {manifest.kind}, expected a {stage.reads[name]}")
    return manifest


def _refer_to_start(manifests: dict[str, Manifest], config: RunConfig, store: ArtifactStore) -> None:
    """The DAG of a run that goes on from an earlier one takes its first policy for the reference; put the real one."""
    found, start = manifests.get("reference"), config.start
    if found and start.reference and found.digest == start.policy:
        manifests["reference"] = store.get_manifest(start.reference)


def _check_names(stage: Stage, inputs: Mapping[str, Manifest], outputs: Mapping[str, str]) -> None:
    missing = set(stage.reads) - set(inputs)
    if missing:
        raise ContractError(f"{stage.name}: input {sorted(missing)[0]!r} is not given")
    if set(outputs) != set(stage.writes):
        raise ContractError(f"{stage.name} writes {', '.join(stage.writes)}; given: {', '.join(outputs) or 'nothing'}")


def _publish(context: StageContext, result: StageResult, part: Mapping[str, str]) -> dict[str, Manifest]:
    lineage = _lineage(context.stage, context.inputs, context.round)
    return {
        name: context.store.get_manifest(result.reused[name])
        if name in result.reused
        else context.store.put_artifact(
            kind,
            context.output_dir(name),
            lineage=lineage,
            counts=result.counts.get(name, {}),
            metadata={**result.metadata.get(name, {}), **part},
        )
        for name, kind in context.stage.writes.items()
    }


def _pass_on(
    stage: Stage, inputs: Mapping[str, Manifest], store: ArtifactStore, round: int | None, part: Mapping[str, str]
) -> dict[str, Manifest]:
    """Outputs of a stage whose run was stopped: its input of the same kind, or an empty artifact that says so."""
    by_kind = {manifest.kind: manifest for name, manifest in inputs.items() if name != "reference"}
    with tempfile.TemporaryDirectory(prefix="burnish-stopped-") as folder:
        return {
            name: by_kind.get(kind)
            or store.put_artifact(
                kind,
                Path(folder),
                lineage=_lineage(stage, inputs, round),
                counts={},
                metadata={"stopped": True, **part},
            )
            for name, kind in stage.writes.items()
        }


def _lineage(stage: Stage, inputs: Mapping[str, Manifest], round: int | None) -> Lineage:
    digests = {name: manifest.digest for name, manifest in inputs.items()}
    return Lineage(stage=stage.name, round=round, inputs=digests, code=keys.code_digest())
