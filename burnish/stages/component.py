"""What a KFP component's body calls: KFP's artifact objects in, `run_stage` in the middle, metrics and metadata out.

KFP is not imported here: its Input and Output objects are only asked for `path`, `metadata` and `log_metric`.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.errors import BurnishError, ConfigError
from burnish.contracts.loading import load_config
from burnish.contracts.shards import all_shards
from burnish.stages.attempt import write_manifests
from burnish.stages.entry import load_resolved, run_stage
from burnish.store import ArtifactStore, open_store

SUPERVISOR_VARIABLE = "BURNISH_SUPERVISOR_PID"

_OF_ROLLOUTS = ("executions", "rewards", "logprobs")
"""Kinds whose rows are about rollouts, and so about the policy that drew these."""


def run_component(
    name: str,
    *,
    run_id: str,
    config: Any,
    outputs: Mapping[str, Any],
    metrics: Any,
    inputs: Mapping[str, Any] | None = None,
    overrides: str = "",
    form: Mapping[str, str] | None = None,
    round: int | None = None,
    label: str = "",
    shard: str = "",
    compiled_for: Mapping[str, int] | None = None,
    shown: str | None = None,
) -> None:
    """Run stage `name` inside a KFP task.

    `config` is the artifact that validate wrote, or the text of a configuration. `form` maps settings to what was
    entered for them in KFP's form, empty for what the configuration says; `overrides` have the last word. `shown`
    names a file of the output that KFP shows itself (HTML): its content, not the manifest, becomes KFP's artifact.
    Exits with one line on stderr and the error's code when a person can fix what is wrong.
    """
    _die_with_supervisor()
    with tempfile.TemporaryDirectory(prefix="burnish-task-") as folder:
        if isinstance(config, str):
            config_path = Path(folder) / "config.yaml"
            config_path.write_text(config, "utf-8")
        else:
            config_path = Path(config.path)
        paths = {key: artifact.path for key, artifact in outputs.items()}
        if shown:
            paths = {key: str(Path(folder) / f"{key}.json") for key in outputs}
        try:
            given = (*_filled_in(form or {}), *overrides.split())
            if compiled_for:
                _check_compiled_shape(config_path, given, compiled_for)
            record = run_stage(
                name,
                config_path=str(config_path),
                run_id=run_id,
                inputs={key: artifact.path for key, artifact in (inputs or {}).items()},
                outputs=paths,
                round=round,
                label=label,
                shard=shard,
                overrides=given,
            )
        except BurnishError as error:
            _fail(error)
        _log(record, metrics)
        for key, artifact in outputs.items():
            artifact.metadata.update(_lineage(record, _manifest(paths[key]), inputs or {}))
        if shown:
            _show(outputs, paths, shown)


def gather_component(stage: str, *, run_id: str, shards: Sequence[Any], output: Any, metrics: Any) -> None:
    """Gather the `shards` of `stage` inside a KFP task; exits as `run_component` does."""
    # Its imports (pyarrow) are not those of every stage.
    from burnish.stages.gather import gather

    _die_with_supervisor()
    try:
        store = open_store()
        record, whole = gather(stage, [_manifest_of(shard, store) for shard in shards], store, run_id)
        write_manifests({"whole": whole}, {"whole": output.path})
    except BurnishError as error:
        _fail(error)
    _log(record, metrics)
    drawn_by = {name: value for name, value in shards[0].metadata.items() if name == "policy_version"}
    output.metadata.update(_lineage(record, whole, {}) | drawn_by)


def shards_of(resolved: Any) -> list[str]:
    """What the loops of a run go over, by the configuration that validate wrote: `1/3`, `2/3`, `3/3`."""
    return all_shards(load_resolved(Path(resolved.path), (), open_store()).rollout.shards)


def _manifest_of(artifact: Any, store: ArtifactStore) -> Manifest:
    """Of the file, or by the digest: older launchers of KFP download only the first artifact of a list."""
    if Path(artifact.path).exists():
        return _manifest(artifact.path)
    return store.get_manifest(str(artifact.metadata["digest"]))


def _log(record: StageRecord, metrics: Any) -> None:
    for key, value in record.metrics.items():
        if value is not None:
            metrics.log_metric(key, value)


def _filled_in(form: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{setting}={value}" for setting, value in form.items() if value.strip())


def _check_compiled_shape(path: Path, overrides: tuple[str, ...], compiled_for: Mapping[str, int]) -> None:
    config = load_config(path, overrides)
    for field, compiled in compiled_for.items():
        wanted = reduce(getattr, field.split("."), config)
        if wanted != compiled:
            raise ConfigError(
                f"{field} is {wanted}, but this pipeline was compiled for {field}={compiled}: "
                f"the DAG's shape is fixed; compile again with {field}={wanted}"
            )


def _lineage(record: StageRecord, manifest: Manifest, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What KFP shows of an artifact: what it is, how much of it, and what made it."""
    shown: dict[str, Any] = {"digest": manifest.digest, "bytes": manifest.size, "code": manifest.lineage.code}
    if manifest.lineage.round is not None:
        shown["round"] = manifest.lineage.round
    if "BURNISH_IMAGE" in os.environ and not record.cached:
        shown["image"] = os.environ["BURNISH_IMAGE"]
    if manifest.kind in _OF_ROLLOUTS and "rollouts" in inputs:
        drawn_by = _manifest(inputs["rollouts"].path).metadata
        # A run that was stopped passes on rollouts of nobody.
        if "policy_version" in drawn_by:
            shown["policy_version"] = drawn_by["policy_version"]
    return shown | manifest.counts | {name: json.loads(json.dumps(value)) for name, value in manifest.metadata.items()}


def _manifest(path: str) -> Manifest:
    return Manifest.from_json(Path(path).read_bytes(), path)


def _show(outputs: Mapping[str, Any], paths: Mapping[str, str], file: str) -> None:
    store = open_store()
    for key, artifact in outputs.items():
        manifest = _manifest(paths[key])
        with tempfile.TemporaryDirectory(prefix="burnish-show-") as folder:
            store.fetch(manifest, Path(folder) / "files")
            Path(artifact.path).parent.mkdir(parents=True, exist_ok=True)
            Path(artifact.path).write_bytes((Path(folder) / "files" / file).read_bytes())


def _fail(error: BurnishError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


def _die_with_supervisor() -> None:
    """End this process when the `burnish run` that started it is gone: KFP's runner leaves its children behind."""
    pid = os.environ.get(SUPERVISOR_VARIABLE)
    if not pid:
        return

    def watch() -> None:
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.5)
        os._exit(143)

    threading.Thread(target=watch, daemon=True, name="supervisor-watch").start()
