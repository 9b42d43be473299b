"""A campaign's controller as a pipeline of one light task: when its process fails KFP starts another, which goes on.

It submits the chunks to the same KFP. It needs no GPU, mostly waits, and leaves the campaign's page.
"""

from pathlib import Path

from kfp import compiler, dsl
from kfp.dsl import HTML, Output
from kfp.dsl.base_component import BaseComponent

from burnish.contracts.config import RunConfig
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import StagePlacement, merged
from pipelines.train import compact_config

IN_CLUSTER_HOST = "http://ml-pipeline.kubeflow.svc:8888"
IMAGE = "validate"
"""Stage whose image has KFP's client; the controller takes its place on the cluster, too."""
CONTROLLER = StagePlacement(
    # For days on end.
    timeout_s=0,
    # Kubeflow's PodDefault of that label mounts a token for KFP's API, which a multi-user installation asks for.
    labels={"access-ml-pipeline": "true"},
)


@dsl.component(base_image=f"burnish/{IMAGE}", install_kfp_package=False)
def campaign(
    config: str,
    overrides: str,
    placement: str,
    kfp_host: str,
    kfp_namespace: str,
    experiment: str,
    page: Output[HTML],
) -> None:
    """Submit chunk after chunk of a campaign and wait for each.

    Args:
        config: The configuration as YAML or JSON text.
        overrides: `a.b=c` settings with the last word, separated by spaces or newlines.
        placement: Where the chunks' stages run, as YAML or JSON text.
        kfp_host: Address of KFP's API inside the cluster.
        kfp_namespace: Namespace of the profile where KFP is multi-user.
        experiment: KFP experiment of the chunks.
        page: Curves across the chunks.
    """
    import tempfile
    from pathlib import Path

    from burnish.cli.main import main

    folder = Path(tempfile.mkdtemp(prefix="burnish-campaign-"))
    (folder / "config.yaml").write_text(config, "utf-8")
    (folder / "placement.yaml").write_text(placement, "utf-8")
    try:
        main(
            [
                "campaign",
                str(folder / "config.yaml"),
                *overrides.split(),
                f"--placement={folder / 'placement.yaml'}",
                f"--host={kfp_host}",
                f"--experiment={experiment}",
                f"--home={folder / 'home'}",
                f"--page={page.path}",
                *([f"--namespace={kfp_namespace}"] if kfp_namespace else []),
            ]
        )
    except SystemExit as ending:
        # A success must come back to KFP's executor, which has outputs to write.
        if ending.code:
            raise


def build_campaign(config: RunConfig, placement: ClusterPlacement, namespace: str = "") -> BaseComponent:
    """The pipeline that drives the campaign of `config`; its parameters' defaults are that campaign."""
    settings = compact_config(config)
    own = merged(placement.stages.get(IMAGE, StagePlacement()), CONTROLLER)
    place = placement.model_copy(update={"stages": {**placement.stages, IMAGE: own}})
    where = placement.model_dump_json(exclude_defaults=True)

    @dsl.pipeline(name=f"burnish-campaign-{config.name}", description="Chunk after chunk of RL post-training")
    def burnish_campaign(
        config: str = settings,
        experiment: str = "burnish",
        kfp_host: str = IN_CLUSTER_HOST,
        kfp_namespace: str = namespace,
        overrides: str = "",
        placement: str = where,
    ):
        task = campaign(
            config=config,
            overrides=overrides,
            placement=placement,
            kfp_host=kfp_host,
            kfp_namespace=kfp_namespace,
            experiment=experiment,
        )
        place(task, IMAGE).set_display_name("campaign")
        # At even intervals; the longest duration counts from the first attempt's start (a year).
        task.set_retry(1000, backoff_duration="60s", backoff_factor=1.0, backoff_max_duration="31536000s")

    return burnish_campaign


def compile_campaign(config: RunConfig, path: Path, placement: ClusterPlacement, namespace: str = "") -> int:
    """Write the IR of the campaign's pipeline to `path`; returns its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(build_campaign(config, placement, namespace), str(path))
    return path.stat().st_size
