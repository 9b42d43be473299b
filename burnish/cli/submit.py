"""`burnish submit`: upload the pipeline to a Kubeflow Pipelines server and start a run of it.

A version is named by the content of its IR, so submitting again what is there already uploads nothing.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.compile import add_cluster_arguments, compile_for_cluster
from burnish.cli.home import run_id_of
from burnish.cli.kfp_client import add_kfp_arguments, connect, explained
from burnish.cli.settings import add_config_arguments, config_of
from burnish.cli.watch import watch
from burnish.contracts.errors import BurnishError

if TYPE_CHECKING:
    import kfp


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("submit", help="upload the pipeline to Kubeflow Pipelines and start a run")
    add_config_arguments(parser)
    add_kfp_arguments(parser, "KFP API, e.g. https://kfp.example.com/pipeline (default: $KFP_HOST)")
    parser.add_argument("--experiment", default="burnish", help="KFP experiment")
    parser.add_argument(
        "--service-account",
        metavar="NAME",
        help="account of the run's pods (default: KFP's pipeline-runner, or the profile's default-editor)",
    )
    parser.add_argument("--upload-only", action="store_true", help="upload the pipeline and start no run")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent and send nothing")
    parser.add_argument("--watch", action="store_true", help="follow the run to its end; exits 1 unless it succeeds")
    parser.add_argument("--attach", metavar="KFP_RUN", help="start nothing: follow a run that KFP has, by KFP's id")
    parser.add_argument(
        "--compare",
        metavar="RUN[,RUN]",
        help="figures of two runs of Burnish side by side, from the store or MLflow: with one run, the one to start "
        "against it, once it ended; with two, these, and nothing is started",
    )
    add_cluster_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    other, _, second = (given.compare or "").partition(",")
    if second:
        return _compare(other, second)
    if not given.host and not given.dry_run:
        raise BurnishError("--host is not given and KFP_HOST is not set; name the KFP API's address")
    if other:
        # A run that cannot be compared with should be known of before hours of training.
        from burnish.cli.compare_runs import curves_of

        curves_of(other)
    if given.attach:
        with explained(given.host):
            client = connect(given.host, given.namespace, given.token_file)
        return watch(client, given.host, given.attach)
    config = config_of(given)
    run_id = run_id_of(config)
    with tempfile.TemporaryDirectory(prefix="burnish-submit-") as folder:
        path = Path(folder) / f"burnish-{config.name}.yaml"
        size = compile_for_cluster(given, config, path)
        request = {
            "host": given.host,
            "namespace": given.namespace,
            "experiment": given.experiment,
            "pipeline": path.stem,
            "version": version_of(config.name, path),
            "run": run_id,
            "parameters": {"run_id": run_id},
            "service_account": given.service_account,
            "ir_bytes": size,
        }
        if given.dry_run:
            print(json.dumps(request, indent=2))
            return 0
        with explained(given.host):
            client = connect(given.host, given.namespace, given.token_file)
            started = _upload_and_start(client, request, path, start=not given.upload_only)
    if not started or not (given.watch or other):
        return 0
    status = watch(client, given.host, started)
    return max(status, _compare(other, run_id)) if other and status != 130 else status


def _compare(first: str, second: str) -> int:
    from burnish.cli.compare_runs import print_comparison

    print_comparison(first, second)
    return 0


def _upload_and_start(client: "kfp.Client", request: dict[str, Any], path: Path, start: bool) -> str | None:
    """Upload the IR and, if asked for, start the run; says what was done and returns KFP's id of the run."""
    version, new = upload(client, request, path)
    if not start:
        print(f"{request['pipeline']}: version {request['version']} {'uploaded' if new else 'is there already'}")
        return None
    experiment = client.create_experiment(request["experiment"], namespace=request["namespace"])
    run = client.run_pipeline(
        experiment.experiment_id,
        request["run"],
        params=request["parameters"],
        pipeline_id=version.pipeline_id,
        version_id=version.pipeline_version_id,
        enable_caching=False,
        service_account=request["service_account"],
    )
    print(f"started {request['run']}: {request['host']}/#/runs/details/{run.run_id}")
    return str(run.run_id)


def version_of(name: str, path: Path) -> str:
    """Name of the version that the IR in `path` is: the same content, the same version."""
    return f"{name}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


def upload(client: "kfp.Client", request: dict[str, Any], path: Path) -> tuple[Any, bool]:
    """The version of this IR that `request` names (pipeline, version, namespace), and whether it is new."""
    name, namespace = request["pipeline"], request["namespace"]
    pipelines = client.list_pipelines(filter=named(name), namespace=namespace).pipelines or []
    pipeline = next((found for found in pipelines if found.display_name == name), None)
    if pipeline is None:
        # Uploading a pipeline would also make a version under the pipeline's own name.
        wanted = client.api_models.V2beta1Pipeline(name=name, display_name=name, namespace=namespace)
        pipeline = client.pipelines.pipeline_service_create_pipeline(wanted)
    versions = client.list_pipeline_versions(pipeline.pipeline_id, filter=named(request["version"])).pipeline_versions
    version = next((found for found in versions or [] if found.display_name == request["version"]), None)
    if version is not None:
        return version, False
    return client.upload_pipeline_version(str(path), request["version"], pipeline_id=pipeline.pipeline_id), True


def named(name: str) -> str:
    """KFP's filter for one display name; lists come in pages, so what is looked for might not be on the first."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})
