"""Runs the DAG of a configuration, each task in a container of its stage's image that gets nothing.

`python contained_run.py FOLDER REPOSITORY TAG` with a configuration in FOLDER/config.yaml; the store is FOLDER/store.
"""

import sys
from pathlib import Path

from kfp import local

from burnish.contracts.loading import load_config
from pipelines.placement import ClusterPlacement
from pipelines.train import build_pipeline, compact_config, unplaced

# What OpenShift gives a pod: a user that no image knows, in the root group.
USER = "1000750000:0"


def main(folder: Path, repository: str, tag: str) -> None:
    config = load_config(folder / "config.yaml")
    images = ClusterPlacement(registry=repository, tag=tag)
    store, root = folder / "store", folder / "kfp"
    for shared in (store, root):
        shared.mkdir()
        shared.chmod(0o777)
    runner = local.DockerRunner(
        user=USER,
        read_only=True,
        tmpfs={"/tmp": "size=2g,mode=1777,exec"},
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=512,
        mounts=[{"Type": "bind", "Source": str(folder), "Target": str(folder)}],
        environment={"BURNISH_STORE": str(store), "OMP_NUM_THREADS": "1"},
    )
    local.init(runner, pipeline_root=str(root))
    pipeline = build_pipeline(
        config, lambda task, stage: unplaced(task, stage).set_container_image(images.image(stage))
    )
    pipeline(config=compact_config(config), overrides="", run_id="contained")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
