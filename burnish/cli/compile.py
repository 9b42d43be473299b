"""`burnish compile`: the IR that a cluster's KFP takes, with every stage's image, resources, secrets and retries."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.config import RunConfig
from burnish.contracts.cost import CPU
from burnish.contracts.errors import ConfigError
from burnish.contracts.stages import STAGES, check_task_budget, dag_tasks

if TYPE_CHECKING:
    from pipelines.placement import ClusterPlacement


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("compile", help="write the pipeline's IR for a cluster")
    add_config_arguments(parser)
    parser.add_argument("-o", "--output", default=None, help="IR file (default: pipelines/compiled/<name>.yaml)")
    add_cluster_arguments(parser)
    parser.set_defaults(handler=handle)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """What the IR says about the cluster."""
    parser.add_argument("--placement", metavar="FILE", help="YAML: images, resources, nodes, queue, ... of the stages")
    parser.add_argument("--registry", default=None, help="prefix of every stage image (default: burnish)")
    parser.add_argument("--tag", default=None, help="immutable tag of every stage image (default: this version)")
    parser.add_argument("--cpu", action="store_true", help="ask for no GPUs")


def handle(given: argparse.Namespace) -> int:
    config = config_of(given)
    path = Path(given.output or f"pipelines/compiled/{config.name}.yaml")
    size = compile_for_cluster(given, config, path)
    print(f"{path}: {dag_tasks(config.rounds, config.rollout.shards, config.execute_shards)} tasks, {size} bytes")
    return 0


def compile_for_cluster(given: argparse.Namespace, config: RunConfig, path: Path) -> int:
    """Compile `config` for the cluster that the arguments describe; returns the IR's bytes. Raises ConfigError."""
    from pipelines.train import compile_pipeline

    check_task_budget(config.rounds, config.rollout.shards, config.execute_shards)
    placement = placement_of(given, config)
    if config.cost.budget is not None and (kinds := unpriced(placement, config)):
        raise ConfigError(
            f"cost.budget is {config.cost.budget:g} but {kinds[0]} has no price, so nobody could hold it; "
            "add it to cost.gpu_hour"
        )
    return compile_pipeline(config, path, placement)


def unpriced(placement: "ClusterPlacement", config: RunConfig) -> list[str]:
    """Types of GPU that stages ask for and that `cost.gpu_hour` does not know."""
    asked = {name for stage in STAGES for name in placement.of(stage).resources}
    return sorted(asked - config.cost.gpu_hour.keys() - {CPU})


def placement_of(given: argparse.Namespace, config: RunConfig) -> "ClusterPlacement":
    """The placement file with the arguments on top, and as many GPUs as `config` has use for. Raises ConfigError."""
    from pipelines.placement import load_placement

    placement = load_placement(Path(given.placement) if given.placement else None)
    said: dict[str, Any] = {"registry": given.registry, "tag": given.tag}
    if given.cpu or config.runtime.device == "cpu":
        said["gpus"] = False
    placement = placement.model_copy(update={name: value for name, value in said.items() if value is not None})
    return placement.for_processes(config.runtime.processes)
