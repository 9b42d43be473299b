"""The policy a run ends with, as a model in MLflow: a logged model of the run and a version of a registered model.

It is registered by reference. The weights stay in the store under their digest, and the tags say which store, from
which base model, run, prompts and code.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.track.points import metric_points
from burnish.track.run import RUN_ID_TAG, run_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

POLICY_TAG = "burnish.policy"
LOGGED_MODEL_TAG = "burnish.logged_model"
MODEL_TYPE = "burnish-policy"


def final_policy(records: Sequence[StageRecord]) -> str | None:
    """Digest of the policy of the last round that was updated, else of the cold start; None before that."""
    updates = [record for record in records if record.round is not None and "updated_policy" in record.outputs]
    if updates:
        return max(updates, key=lambda record: record.round or 0).outputs["updated_policy"]
    return next((record.outputs["policy"] for record in records if "policy" in record.outputs), None)


def register_policy(
    client: "MlflowClient",
    run: "Run",
    policy: Manifest,
    config: RunConfig,
    records: Sequence[StageRecord],
    *,
    run_id: str,
    headline: str = "",
) -> None:
    """Register `policy` under the run's name, with the evaluation after training as its metrics; once a policy."""
    model_id = _logged_model(client, run, policy, config, records, run_id)
    _create_registered_model(client, config.name)
    if not _versions(client, run, policy):
        client.create_model_version(
            config.name,
            # A server refuses folders of its clients as a source, and the digest is the same in every store.
            f"burnish://{policy.kind}/{policy.digest}",
            run.info.run_id,
            tags=_lineage(policy, config, records, run_id) | {LOGGED_MODEL_TAG: model_id},
            description=headline,
            await_creation_for=0,
            model_id=model_id,
        )
    # A request whose answer got lost was sent twice.
    for double in _versions(client, run, policy)[1:]:
        client.delete_model_version(config.name, double.version)


def _versions(client: "MlflowClient", run: "Run", policy: Manifest) -> list["ModelVersion"]:
    """Of this policy, the oldest first."""
    found = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    mine = [version for version in found if version.tags.get(POLICY_TAG) == policy.digest]
    return sorted(mine, key=lambda version: int(version.version))


def _logged_model(
    client: "MlflowClient",
    run: "Run",
    policy: Manifest,
    config: RunConfig,
    records: Sequence[StageRecord],
    run_id: str,
) -> str:
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

    if not _models(client, run, policy):
        client.create_logged_model(
            run.info.experiment_id,
            name=config.name,
            source_run_id=run.info.run_id,
            tags=_lineage(policy, config, records, run_id),
            params={"base_model": config.model.path, "preset": config.update.preset, "rounds": str(config.last_round)},
            model_type=MODEL_TYPE,
        )
    model, *doubles = _models(client, run, policy)
    for double in doubles:
        client.delete_logged_model(double.model_id)
    if model.status != LoggedModelStatus.READY:
        outputs = client.get_run(run.info.run_id).outputs
        # MLflow refuses an output that it has.
        if model.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else [])]:
            client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, config.last_round)])
        metrics = [
            Metric(name, value, int(record.finished_at * 1000), step, model_id=model.model_id)
            for record in records
            if record.stage == "evaluate" and record.label == "after" and not record.error
            for name, value, step in metric_points(record, config.last_round)
            if name.startswith("eval/")
        ]
        client.log_batch(run.info.run_id, metrics=metrics[:1000])
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _models(client: "MlflowClient", run: "Run", policy: Manifest) -> list["LoggedModel"]:
    """Of this policy, the oldest first."""
    found = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    mine = [model for model in found if model.tags.get(POLICY_TAG) == policy.digest]
    return sorted(mine, key=lambda model: (model.creation_timestamp, model.model_id))


def _create_registered_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Policies that Burnish trained; one version a run.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _lineage(policy: Manifest, config: RunConfig, records: Sequence[StageRecord], run_id: str) -> dict[str, str]:
    prompts = [record.outputs["prompts"] for record in records if "prompts" in record.outputs]
    revision = f"@{config.model.revision}" if config.model.revision else ""
    known = {
        POLICY_TAG: policy.digest,
        RUN_ID_TAG: run_id,
        "burnish.base_model": config.model.path + revision,
        "burnish.policy_version": policy.metadata.get("policy_version"),
        "burnish.step": policy.metadata.get("step"),
        "burnish.bytes": policy.size,
        "burnish.prompts": prompts[-1] if prompts else None,
        "burnish.code": policy.lineage.code,
    }
    return run_tags(config, records) | {key: str(value) for key, value in known.items() if value not in (None, "")}
