"""`burnish submit`: upload the pipeline to a Kubeflow Pipelines server and start a run of it.

A version is named by the content of its IR, so submitting again what is there already uploads nothing.
"""

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.compile import add_cluster_arguments, compile_for_cluster
from burnish.cli.home import run_id_of
from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.errors import BurnishError

if TYPE_CHECKING:
    import kfp

TOKEN_VARIABLE = "KFP_TOKEN"
# KFP's own name for it: a file that the kubelet keeps fresh, in a pod of a multi-user installation.
TOKEN_FILE_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("submit", help="upload the pipeline to Kubeflow Pipelines and start a run")
    add_config_arguments(parser)
    parser.add_argument(
        "--host",
        default=os.environ.get("KFP_HOST"),
        help="KFP API, e.g. https://kfp.example.com/pipeline (default: $KFP_HOST)",
    )
    parser.add_argument("--namespace", default=None, help="profile namespace of a multi-user KFP")
    parser.add_argument("--experiment", default="burnish", help="KFP experiment")
    parser.add_argument("--upload-only", action="store_true", help="upload the pipeline and start no run")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent and send nothing")
    add_cluster_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    config = config_of(given)
    if not given.host and not given.dry_run:
        raise BurnishError("--host is not given and KFP_HOST is not set; name the KFP API's address")
    run_id = run_id_of(config)
    with tempfile.TemporaryDirectory(prefix="burnish-submit-") as folder:
        path = Path(folder) / f"burnish-{config.name}.yaml"
        size = compile_for_cluster(given, config, path)
        request = {
            "host": given.host,
            "namespace": given.namespace,
            "experiment": given.experiment,
            "pipeline": path.stem,
            "version": f"{config.name}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}",
            "run": run_id,
            "parameters": {"run_id": run_id},
            "ir_bytes": size,
        }
        if given.dry_run:
            print(json.dumps(request, indent=2))
            return 0
        print(_send(request, path, start=not given.upload_only))
    return 0


def _send(request: dict[str, Any], path: Path, start: bool) -> str:
    """Upload the IR and, if asked for, start the run; returns what has been done."""
    import kfp
    from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials
    from kfp_server_api.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    host = request["host"]
    token_file = os.environ.get(TOKEN_FILE_VARIABLE)
    try:
        client = kfp.Client(
            host=host,
            namespace=request["namespace"] or "kubeflow",
            existing_token=os.environ.get(TOKEN_VARIABLE),
            credentials=ServiceAccountTokenVolumeCredentials(token_file) if token_file else None,
        )
        version, new = _upload(client, request, path)
        if not start:
            return f"{request['pipeline']}: version {request['version']} {'uploaded' if new else 'is there already'}"
        experiment = client.create_experiment(request["experiment"], namespace=request["namespace"])
        run = client.run_pipeline(
            experiment.experiment_id,
            request["run"],
            params=request["parameters"],
            pipeline_id=version.pipeline_id,
            version_id=version.pipeline_version_id,
            enable_caching=False,
        )
    except ApiException as error:
        raise BurnishError(f"KFP at {host} answered {error.status} {error.reason}: {_first_line(error.body)}") from None
    except (HTTPError, ValueError, OSError) as error:
        raise BurnishError(f"KFP at {host} cannot be used: {_first_line(str(error))}; check --host") from None
    return f"started {request['run']}: {host}/#/runs/details/{run.run_id}"


def _upload(client: "kfp.Client", request: dict[str, Any], path: Path) -> tuple[Any, bool]:
    """The pipeline's version of this IR, and whether it is new."""
    name, namespace = request["pipeline"], request["namespace"]
    pipelines = client.list_pipelines(filter=_named(name), namespace=namespace).pipelines or []
    pipeline = next((found for found in pipelines if found.display_name == name), None)
    if pipeline is None:
        # Uploading a pipeline would also make a version under the pipeline's own name.
        wanted = client.api_models.V2beta1Pipeline(name=name, display_name=name, namespace=namespace)
        pipeline = client.pipelines.pipeline_service_create_pipeline(wanted)
    versions = client.list_pipeline_versions(pipeline.pipeline_id, filter=_named(request["version"])).pipeline_versions
    version = next((found for found in versions or [] if found.display_name == request["version"]), None)
    if version is not None:
        return version, False
    return client.upload_pipeline_version(str(path), request["version"], pipeline_id=pipeline.pipeline_id), True


def _named(name: str) -> str:
    """KFP's filter for one display name; lists come in pages, so what is looked for might not be on the first."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def _first_line(text: str | bytes | None) -> str:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return " ".join((text or "no details").split())[:300]
