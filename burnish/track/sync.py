"""A run's records to MLflow: one MLflow run per training run, every record sent once, nothing lost when it is down.

The records in the store are the spool. What was sent is remembered in MLflow itself, as one tag a record, so any
process may sync at any time and a repeated sync sends only what is new.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.campaign import StartConfig
from burnish.contracts.config import RunConfig
from burnish.contracts.cost import run_cost
from burnish.track.datasets import dataset_inputs
from burnish.track.model import register_policy
from burnish.track.points import Batch, batches, legal_name
from burnish.track.run import TAG_LIMIT, describe_run, find_campaign_run, find_or_create_run, write_note

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# MLflow keeps tags of its own name space out of sight, and nobody wants to read one a record.
SENT_TAG = "mlflow.burnish.sent."
# A dead server must cost seconds, not MLflow's default of four minutes; the next sync sends what this one could not.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


PATIENCE_S = 60.0
"""A sync that takes longer, because MLflow is slow, leaves the rest to the next one."""
_SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")


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
    headline: str = "",
    policy: Manifest | None = None,
) -> SyncResult | None:
    """Send every record of run `run_id` that MLflow does not have yet, then `files` as artifacts.

    `headline` becomes the run's description, `policy` a version of its registered model when `status` is FINISHED.
    `tracking_uri` None takes MLFLOW_TRACKING_URI; without one there is no tracking and None comes back. Errors of
    MLflow or of the network never leave this function: they are the result's `problem`.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return None
    finished = [record for record in records if not record.error]
    try:
        # Costs 1.5 s, which a run without tracking should not pay.
        from mlflow import MlflowClient
    except ImportError:
        problem = "MLFLOW_TRACKING_URI is set but mlflow is not installed; pip install 'burnish[track]'"
        return SyncResult(left=len(finished), problem=problem)
    sent = 0
    left = len(finished)
    began = time.monotonic()
    mlflow_run: str | None = None
    with _impatient():
        try:
            client = MlflowClient(tracking_uri=uri)
            campaign = find_campaign_run(client, config, records)
            run = find_or_create_run(client, run_id, config, records, campaign.info.run_id if campaign else None)
            mlflow_run = run.info.run_id
            both = [run, campaign] if campaign else [run]
            for known in both:
                if known.info.status != "RUNNING":
                    client.update_run(known.info.run_id, status="RUNNING")
            describe_run(client, run, config, records)
            waiting = [record for record in finished if run.data.tags.get(_mark(record)) != record.key[:16]]
            left = len(waiting)
            if any(record.stage == "validate" for record in waiting):
                client.log_inputs(mlflow_run, dataset_inputs(config, finished))
            for batch in batches(waiting, config.last_round, run.info.start_time, config.start.round):
                if campaign:
                    _continue_curves(client, campaign, batch, config)
                _send(client, mlflow_run, batch)
                sent, left = sent + len(batch.records), left - len(batch.records)
                if left and time.monotonic() - began > PATIENCE_S:
                    return SyncResult(sent, left, mlflow_run, f"{_address(uri)} took more than {PATIENCE_S:g} s")
            spent = run_cost(records, config.cost)
            if waiting and spent is not None:
                rounds = max((record.round or 0 for record in finished), default=0)
                moment = int(max(record.finished_at for record in finished) * 1000)
                # At a time of its own, so that MLflow merges it with what a sync that broke off sent.
                client.log_metric(mlflow_run, "cost/total", spent, moment, rounds)
            _send_outcome(client, run, records)
            for file in files:
                client.log_artifact(mlflow_run, str(file))
            if headline:
                write_note(client, run, run_id, headline)
            if status != "RUNNING":
                # A sync long after the run, because MLflow was away, must not stretch it.
                ended = max((record.finished_at for record in records), default=0.0)
                for known in both:
                    client.set_terminated(known.info.run_id, status=status, end_time=int(ended * 1000) or None)
            # Last, because a server may have no model registry.
            if policy and status == "FINISHED":
                register_policy(client, run, policy, config, finished, run_id=run_id, headline=headline)
        # MLflow's artifact stores raise what their clients raise (boto3, Google, Azure), and none may fail a stage.
        except Exception as error:
            return SyncResult(sent, left, mlflow_run, _one_line(error, uri))
    return SyncResult(sent, left, mlflow_run)


def _send(client: "MlflowClient", mlflow_run: str, batch: Batch) -> None:
    """MLflow stores metrics before tags, and merges equal metrics: a break in between repeats them without harm."""
    from mlflow.entities import Metric, RunTag

    client.log_batch(
        mlflow_run,
        metrics=[Metric(*point) for point in batch.metrics],
        tags=[RunTag(_mark(record), record.key[:16]) for record in batch.records],
    )


def _continue_curves(client: "MlflowClient", campaign: "Run", batch: Batch, config: RunConfig) -> None:
    """The chunk's points in the campaign's own run, where its rounds and steps go on from chunk to chunk.

    Sent before the chunk's run marks the records, so none is left out, and MLflow merges those that come twice.
    """
    from mlflow.entities import Metric

    if not campaign.data.params:
        describe_run(client, campaign, config.model_copy(update={"start": StartConfig()}), batch.records)
    # The load counts seconds since the chunk's start, and only the first chunk starts where the campaign did.
    curves = [point for point in batch.metrics if not point[0].startswith("system/")]
    if config.start.round:
        curves = [point for point in curves if not point[0].startswith("eval/before/")]
    client.log_batch(campaign.info.run_id, metrics=[Metric(*point) for point in curves])


def _send_outcome(client: "MlflowClient", run: "Run", records: Sequence[StageRecord]) -> None:
    failed = [f"{record.title}: {record.error}" for record in records if record.error]
    text = "; ".join(failed)[:TAG_LIMIT]
    if text != run.data.tags.get("burnish.error", ""):
        client.set_tag(run.info.run_id, "burnish.error", text)


def _mark(record: StageRecord) -> str:
    return legal_name(f"{SENT_TAG}{record.title}")


def _one_line(error: Exception, uri: str) -> str:
    """The error in short, without the credentials of ours that it may hold."""
    parts = urlsplit(uri)
    text = " ".join(str(error).split())
    if "failed with exception" in text:
        return f"{_address(uri)} cannot be reached"
    refused = re.search(r"failed with error code (401|403) ", text)
    if refused:
        return (
            f"{_address(uri)} refuses us (status {refused[1]}); check MLFLOW_TRACKING_TOKEN, "
            "or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    for secret in (parts.password, parts.username, *map(os.environ.get, _SECRETS)):
        if secret:
            text = text.replace(secret, "***")
    return f"{type(error).__name__}: {text[:300]}"


def _address(uri: str) -> str:
    """The tracking URI without credentials."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


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
