"""`burnish campaign --detach`: the controller runs in the cluster; this terminal may be closed."""

import argparse
import tempfile
from pathlib import Path

from burnish.campaign.plan import campaign_id_of
from burnish.cli.compile import placement_of
from burnish.cli.kfp_client import connect, explained
from burnish.cli.submit import upload, version_of
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError


def detach(given: argparse.Namespace, config: RunConfig) -> int:
    """Compile the campaign's pipeline and, unless `given.compile` asks for the IR alone, start it.

    Starting it again while it runs does no harm: the second controller is refused.
    """
    from pipelines.campaign import compile_campaign

    placement = placement_of(given, config)
    if given.compile:
        size = compile_campaign(config, Path(given.compile), placement, given.namespace or "")
        print(f"{given.compile}: {size} bytes")
        return 0
    if not given.host:
        raise BurnishError("--host is not given: --detach starts the campaign on a cluster; name its KFP API")
    campaign_id = campaign_id_of(config)
    with tempfile.TemporaryDirectory(prefix="burnish-campaign-") as folder, explained(given.host):
        path = Path(folder) / f"burnish-campaign-{config.name}.yaml"
        compile_campaign(config, path, placement, given.namespace or "")
        client = connect(given.host, given.namespace, given.token_file)
        request = {
            "pipeline": path.stem,
            "version": version_of(config.name, path),
            "namespace": given.namespace,
        }
        version, _ = upload(client, request, path)
        experiment = client.create_experiment(given.experiment, namespace=given.namespace)
        run = client.run_pipeline(
            experiment.experiment_id,
            f"campaign {campaign_id}",
            params={"experiment": given.experiment},
            pipeline_id=version.pipeline_id,
            version_id=version.pipeline_version_id,
            enable_caching=False,
        )
    print(f"campaign {campaign_id} started: {given.host}/#/runs/details/{run.run_id}")
    return 0
