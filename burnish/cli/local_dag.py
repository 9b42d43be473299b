"""The process under `burnish run` that executes the DAG with KFP's local runner; its request comes on stdin as JSON."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from kfp import local

from burnish.cli.containers import RUN_LABEL
from burnish.contracts.loading import load_config
from pipelines.placement import ClusterPlacement
from pipelines.train import build_pipeline, compact_config, unplaced


def main() -> None:
    """Run the DAG to its end; exits 1 when a stage failed."""
    request = json.load(sys.stdin)
    config = load_config(Path(request["config"]))
    # The subprocess runner warns that images are not used; that is the point of it.
    warnings.filterwarnings("ignore", message="You may be attemping to run a task")
    if request["runner"] == "docker":
        images = ClusterPlacement(registry=request["images"], **({"tag": request["tag"]} if request["tag"] else {}))
        place: Any = lambda task, stage: unplaced(task, stage).set_container_image(images.image(stage))  # noqa: E731
        runner: Any = _docker_runner(request)
    else:
        place = unplaced
        runner = local.SubprocessRunner(use_venv=False)
    local.init(runner, pipeline_root=request["pipeline_root"])
    pipeline = build_pipeline(config, place)
    try:
        pipeline(config=compact_config(config), overrides="", run_id=request["run_id"])
    except RuntimeError as error:
        print(error)
        sys.exit(1)


def _docker_runner(request: dict[str, Any]) -> Any:
    cache = Path(os.environ.get("BURNISH_CACHE") or Path.home() / ".cache" / "burnish")
    cache.mkdir(parents=True, exist_ok=True)
    return local.DockerRunner(
        environment={**request["environment"], "BURNISH_CACHE": str(cache)},
        network_mode="host",
        user=f"{os.getuid()}:{os.getgid()}",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mounts=[{"Type": "bind", "Source": str(cache), "Target": str(cache)}],
        labels={RUN_LABEL: request["run_id"]},
        init=True,
        pids_limit=2048,
        shm_size="1g",
    )


if __name__ == "__main__":
    main()
