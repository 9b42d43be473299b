"""The one MLflow run of a training run: found or made, whoever comes first, with its parameters, tags and note.

Stages may come at the same moment, so after making a run each looks again, and all keep the same one.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import burnish
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.track.points import legal_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_ID_TAG = "burnish.run_id"
PARAM_LIMIT = 6000
TAG_LIMIT = 8000
PARAMS_A_BATCH = 100
# Without it MLflow's view for agents, which is its default, shows no training runs.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_NOTE_END = "Written by Burnish; edit this line away to keep your own text."


def find_or_create_run(
    client: "MlflowClient", run_id: str, config: RunConfig, records: Sequence[StageRecord], parent: str | None = None
) -> "Run":
    """The run that MLFLOW_RUN_ID names, else the oldest one with this run id, else a new one under `parent`.

    Two first syncs at the same moment make two runs; the younger is deleted by whoever sees both, and what was
    sent to it is sent again to the other, because the marks of what was sent lie in the run itself.
    """
    given = os.environ.get("MLFLOW_RUN_ID")
    if given:
        return client.get_run(given)
    chunk = f"{config.name} {config.start.round + 1}-{config.last_round}" if config.start.campaign else None
    parent = parent or os.environ.get("MLFLOW_PARENT_RUN_ID")
    return _oldest(client, run_id, config, records, chunk or run_id, parent)


def find_campaign_run(client: "MlflowClient", config: RunConfig, records: Sequence[StageRecord]) -> "Run | None":
    """The run over all chunks of the campaign that this one belongs to; None outside of a campaign."""
    if not config.start.campaign or os.environ.get("MLFLOW_RUN_ID"):
        return None
    parent = os.environ.get("MLFLOW_PARENT_RUN_ID")
    return _oldest(client, config.start.campaign, config, records, config.start.campaign, parent)


def _oldest(
    client: "MlflowClient",
    run_id: str,
    config: RunConfig,
    records: Sequence[StageRecord],
    name: str,
    parent: str | None,
) -> "Run":
    experiment_id = _experiment(client, config.track.experiment)
    if not _runs(client, experiment_id, run_id):
        started = min((record.started_at for record in records if record.started_at), default=0.0)
        client.create_run(
            experiment_id,
            start_time=int(started * 1000) or None,
            tags={
                RUN_ID_TAG: run_id,
                **run_tags(config, records),
                **({"mlflow.parentRunId": parent} if parent else {}),
            },
            run_name=name,
        )
    kept, *others = _runs(client, experiment_id, run_id)
    for other in others:
        client.delete_run(other.info.run_id)
    return kept


def run_tags(config: RunConfig, records: Sequence[StageRecord]) -> dict[str, str]:
    """Tags of the run: versions, the cluster's run, the image of every stage, the user's."""
    known = {
        "burnish.version": burnish.__version__,
        "burnish.store": store_location(),
        "git_sha": os.environ.get("BURNISH_GIT_SHA"),
        "kfp_run_id": os.environ.get("KFP_RUN_ID"),
        **{f"image.{record.stage}": record.image for record in records},
        **config.track.tags,
    }
    return {legal_name(key): value[:TAG_LIMIT] for key, value in known.items() if value}


def store_location() -> str | None:
    """BURNISH_STORE without credentials."""
    store = os.environ.get("BURNISH_STORE")
    parts = urlsplit(store or "")
    return store if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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
            yield legal_name(path), node if isinstance(node, str) else json.dumps(node)

    return {key: value[:PARAM_LIMIT] for key, value in walk(json.loads(config.model_dump_json()), "")}


def describe_run(client: "MlflowClient", run: "Run", config: RunConfig, records: Sequence[StageRecord]) -> None:
    """Parameters and tags that MLflow lacks; a parameter cannot be overwritten there, so a changed one is a tag."""
    from mlflow.entities import Param, RunTag

    params = flat_params(config)
    new = [Param(key, value) for key, value in params.items() if key not in run.data.params]
    for start in range(0, len(new), PARAMS_A_BATCH):
        client.log_batch(run.info.run_id, params=new[start : start + PARAMS_A_BATCH])
    tags = run_tags(config, records) | {
        f"changed.{key}": value[:TAG_LIMIT] for key, value in params.items() if run.data.params.get(key, value) != value
    }
    changed = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
    if changed:
        client.log_batch(run.info.run_id, tags=changed)


def write_note(client: "MlflowClient", run: "Run", run_id: str, headline: str) -> None:
    """The run's description: what came out and where the report is. A text that a person wrote stays."""
    known = run.data.tags.get("mlflow.note.content")
    if known and _NOTE_END not in known:
        return
    store = store_location()
    lines = [
        f"**{headline}**",
        "The whole story: `report.html` under Artifacts; the settings: `config.yaml` beside it.",
        f"Burnish run `{run_id}`" + (f", artifacts in `{store}`." if store else "."),
        f"<sub>{_NOTE_END}</sub>",
    ]
    client.set_tag(run.info.run_id, "mlflow.note.content", "\n\n".join(lines))


def _experiment(client: "MlflowClient", name: str) -> str:
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(name)
    if known:
        return str(known.experiment_id)
    try:
        return str(client.create_experiment(name, tags=_EXPERIMENT_TAGS))
    except MlflowException as error:
        known = client.get_experiment_by_name(name) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
        if known is None:
            raise
        return str(known.experiment_id)


def _runs(client: "MlflowClient", experiment_id: str, run_id: str) -> list["Run"]:
    """Oldest first; of equal age, by id, so that everybody sees the same order."""
    quoted = run_id.replace("'", "")
    found = client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{quoted}'", max_results=100)
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))
