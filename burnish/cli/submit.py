"""`burnish submit`: upload the pipeline to a Kubeflow Pipelines server and start a run of it."""

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from burnish.cli.compile import add_cluster_arguments, compile_for_cluster
from burnish.cli.home import run_id_of
from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.errors import BurnishError

TOKEN_VARIABLE = "KFP_TOKEN"


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
        url = _send(request, path)
    print(f"started {run_id}: {url}")
    return 0


def _send(request: dict[str, Any], path: Path) -> str:
    """Upload the IR (a new version only when this one is not there yet) and start the run; returns its page."""
    import kfp
    from kfp_server_api.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    host = request["host"]
    try:
        client = kfp.Client(
            host=host, namespace=request["namespace"] or "kubeflow", existing_token=os.environ.get(TOKEN_VARIABLE)
        )
        pipeline_id = client.get_pipeline_id(request["pipeline"])
        if pipeline_id is None:
            client.upload_pipeline(str(path), pipeline_name=request["pipeline"], namespace=request["namespace"])
            pipeline_id = client.get_pipeline_id(request["pipeline"])
        versions = client.list_pipeline_versions(pipeline_id, page_size=100).pipeline_versions or []
        version = next((found for found in versions if found.display_name == request["version"]), None)
        if version is None:
            version = client.upload_pipeline_version(str(path), request["version"], pipeline_id=pipeline_id)
        experiment = client.create_experiment(request["experiment"], namespace=request["namespace"])
        run = client.run_pipeline(
            experiment.experiment_id,
            request["run"],
            params=request["parameters"],
            pipeline_id=pipeline_id,
            version_id=version.pipeline_version_id,
            enable_caching=False,
        )
    except ApiException as error:
        raise BurnishError(f"KFP at {host} answered {error.status} {error.reason}: {_first_line(error.body)}") from None
    except (HTTPError, ValueError, OSError) as error:
        raise BurnishError(f"KFP at {host} cannot be used: {_first_line(str(error))}; check --host") from None
    return f"{host}/#/runs/details/{run.run_id}"


def _first_line(text: str | bytes | None) -> str:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return " ".join((text or "no details").split())[:300]
