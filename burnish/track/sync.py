"""A run's records to MLflow: one MLflow run per training run, every record sent once, nothing lost when it is down.

The records in the store are the spool. What was sent is remembered in MLflow itself, as one tag a record, so any
process may sync at any time and a repeated sync sends only what is new.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import burnish
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_ID_TAG = "burnish.run_id"
SENT_TAG = "burnish.sent."
PARAM_LIMIT = 6000
TAG_LIMIT = 8000
PARAMS_A_BATCH = 100
# MLflow takes 1000 entities a request, of which at most 100 are tags.
METRICS_A_BATCH = 900
MARKS_A_BATCH = 100
# A dead server must cost seconds, not MLflow's default of four minutes; the next sync sends what this one could not.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True)
class SyncResult:
    """What a sync did."""

    sent: int = 0
    """Records sent now."""
    left: int = 0
    """Records still to send."""
    run: str | None = None
    """MLflow's id of the run."""
    problem: str | None = None
    """Why it stopped, one line; None when MLflow has everything."""


def sync_run(
    records: Sequence[StageRecord],
    run_id: str,
    config: RunConfig,
    *,
    tracking_uri: str | None = None,
    status: Literal["RUNNING", "FINISHED", "FAILED"] = "RUNNING",
    files: Sequence[Path] = (),
) -> SyncResult | None:
    """Send every record of run `run_id` that MLflow does not have yet, then `files` as artifacts.

    `tracking_uri` None takes MLFLOW_TRACKING_URI; without one there is no tracking and None comes back. Errors of
    MLflow or of the network never leave this function: they are the result's `problem`.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return None
    finished = [record for record in records if not record.error]
    try:
        # Costs 1.5 s, which a run without tracking should not pay.
        import requests
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        problem = "MLFLOW_TRACKING_URI is set but mlflow is not installed; pip install 'burnish[track]'"
        return SyncResult(left=len(finished), problem=problem)
    sent = 0
    left = len(finished)
    mlflow_run: str | None = None
    with _impatient():
        try:
            client = MlflowClient(tracking_uri=uri)
            run = _find_or_create_run(client, run_id, config, records)
            mlflow_run = run.info.run_id
            if run.info.status != "RUNNING":
                client.update_run(mlflow_run, status="RUNNING")
            _send_params(client, run, config)
            waiting = [record for record in finished if run.data.tags.get(_mark(record)) != record.key[:16]]
            left = len(waiting)
            for batch in _batches(waiting, config.rounds):
                _send(client, mlflow_run, batch)
                sent, left = sent + len(batch.records), left - len(batch.records)
            _send_outcome(client, run, records)
            for file in files:
                client.log_artifact(mlflow_run, str(file))
            if status != "RUNNING":
                client.set_terminated(mlflow_run, status=status)
        except (MlflowException, requests.RequestException, OSError) as error:
            return SyncResult(sent, left, mlflow_run, _one_line(error, uri))
    return SyncResult(sent, left, mlflow_run)


def metric_points(record: StageRecord, rounds: int) -> list[tuple[str, float, int]]:
    """(name, value, step) of everything a record measured; missing values are left out.

    Metrics of a round have the round as step, series rows their own `step`; `before` is step 0 and `after` the
    last round. Names without a prefix get the stage's.
    """
    step = record.round if record.round is not None else (rounds if record.label == "after" else 0)
    points = [(metric_name(record, key), value, step) for key, value in record.metrics.items()]
    points += [(f"time/{record.stage}", record.timings.get("total"), step)]
    points += [(f"memory_mb/{record.stage}", record.peak_memory_mb, step)]
    for index, row in enumerate(record.series):
        row_step = row.get("step")
        points += [
            (_legal(f"{record.stage}/{key}"), value, index if row_step is None else int(row_step))
            for key, value in row.items()
            if key != "step"
        ]
    return [(name, value, at) for name, value, at in points if value is not None and math.isfinite(value)]


def metric_name(record: StageRecord, key: str) -> str:
    """`eval/before/pass_at_1` for evaluations, `<stage>/<key>` otherwise, in characters that MLflow allows."""
    if record.stage == "evaluate":
        return _legal("/".join(part for part in ("eval", record.label, key) if part))
    # A figure of the whole stage must not share a name with a per-step curve: their steps mean different things.
    if any(key in row for row in record.series):
        return _legal(f"{record.stage}/{'stage' if record.round is None else 'round'}/{key}")
    return _legal(key if key.startswith(f"{record.stage}/") else f"{record.stage}/{key}")


def flat_params(config: RunConfig) -> dict[str, str]:
    """`section.field` to text, values cut to MLflow's limit."""

    def walk(node: Any, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                yield from walk(value, f"{path}.{key}" if path else str(key))
        elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
            for index, item in enumerate(node):
                yield from walk(item, f"{path}.{index}")
        else:
            yield _legal(path), node if isinstance(node, str) else json.dumps(node)

    return {key: value[:PARAM_LIMIT] for key, value in walk(json.loads(config.model_dump_json()), "")}


def _find_or_create_run(
    client: "MlflowClient", run_id: str, config: RunConfig, records: Sequence[StageRecord]
) -> "Run":
    given = os.environ.get("MLFLOW_RUN_ID")
    if given:
        return client.get_run(given)
    experiment = client.get_experiment_by_name(config.track.experiment)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(config.track.experiment)
    quoted = run_id.replace("'", "")
    found = client.search_runs(
        [experiment_id], f"tags.`{RUN_ID_TAG}` = '{quoted}'", max_results=1, order_by=["attributes.start_time ASC"]
    )
    if found:
        return found[0]
    started = min((record.started_at for record in records if record.started_at), default=0.0)
    return client.create_run(
        experiment_id,
        start_time=int(started * 1000) or None,
        tags={RUN_ID_TAG: run_id, **_tags(config)},
        run_name=config.name,
    )


def _tags(config: RunConfig) -> dict[str, str]:
    known = {
        "burnish.version": burnish.__version__,
        "git_sha": os.environ.get("BURNISH_GIT_SHA"),
        "kfp_run_id": os.environ.get("KFP_RUN_ID"),
        **config.track.tags,
    }
    return {_legal(key): value[:TAG_LIMIT] for key, value in known.items() if value}


def _send_params(client: "MlflowClient", run: "Run", config: RunConfig) -> None:
    """Parameters that MLflow lacks; one that changed cannot be overwritten there and becomes a tag."""
    from mlflow.entities import Param, RunTag

    params = flat_params(config)
    new = [Param(key, value) for key, value in params.items() if key not in run.data.params]
    for start in range(0, len(new), PARAMS_A_BATCH):
        client.log_batch(run.info.run_id, params=new[start : start + PARAMS_A_BATCH])
    changed = [
        RunTag(f"changed.{key}", value[:TAG_LIMIT])
        for key, value in params.items()
        if run.data.params.get(key, value) != value
    ]
    if run.info.run_id == os.environ.get("MLFLOW_RUN_ID"):
        changed += [RunTag(key, value) for key, value in _tags(config).items()]
    if changed:
        client.log_batch(run.info.run_id, tags=changed)


@dataclass(frozen=True)
class _Batch:
    """One request."""

    metrics: list[tuple[str, float, int, int]]
    """(name, value, Unix time in ms, step)."""
    records: list[StageRecord]
    """Those of which nothing is left to send after this batch."""


def _batches(records: Sequence[StageRecord], rounds: int) -> Iterator[_Batch]:
    batch = _Batch([], [])
    for record in records:
        timestamp = int(record.finished_at * 1000)
        points = [(name, value, timestamp, step) for name, value, step in metric_points(record, rounds)]
        if len(batch.metrics) + len(points) > METRICS_A_BATCH or len(batch.records) == MARKS_A_BATCH:
            yield batch
            batch = _Batch([], [])
        for start in range(0, len(points) - METRICS_A_BATCH, METRICS_A_BATCH):
            yield _Batch(points[start : start + METRICS_A_BATCH], [])
        batch.metrics.extend(points[(len(points) - 1) // METRICS_A_BATCH * METRICS_A_BATCH :] if points else [])
        batch.records.append(record)
    if batch.records:
        yield batch


def _send(client: "MlflowClient", mlflow_run: str, batch: _Batch) -> None:
    """MLflow stores metrics before tags, and merges equal metrics: a break in between repeats them without harm."""
    from mlflow.entities import Metric, RunTag

    client.log_batch(
        mlflow_run,
        metrics=[Metric(*point) for point in batch.metrics],
        tags=[RunTag(_mark(record), record.key[:16]) for record in batch.records],
    )


def _send_outcome(client: "MlflowClient", run: "Run", records: Sequence[StageRecord]) -> None:
    failed = [f"{record.title}: {record.error}" for record in records if record.error]
    text = "; ".join(failed)[:TAG_LIMIT]
    if text != run.data.tags.get("burnish.error", ""):
        client.set_tag(run.info.run_id, "burnish.error", text)


def _mark(record: StageRecord) -> str:
    return _legal(f"{SENT_TAG}{record.title}")


def _legal(name: str) -> str:
    """MLflow allows letters, digits and _-. :/ in names."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))[:250]


def _one_line(error: Exception, uri: str) -> str:
    """The error in short, without the credentials that a tracking URI may hold."""
    parts = urlsplit(uri)
    text = " ".join(str(error).split())
    if "failed with exception" in text:
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''} cannot be reached"
    for secret in (parts.password, parts.username):
        if secret:
            text = text.replace(secret, "***")
    return f"{type(error).__name__}: {text[:300]}"


@contextmanager
def _impatient() -> Iterator[None]:
    """Short timeouts for this sync, unless the environment sets its own."""
    added = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
