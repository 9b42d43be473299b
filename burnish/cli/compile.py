"""`burnish compile`: the IR that a cluster's KFP takes, with every stage's image, resources, secrets and retries."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.config import RunConfig
from burnish.contracts.stages import check_task_budget, dag_tasks

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
    print(f"{path}: {dag_tasks(config.rounds)} tasks, {size} bytes")
    return 0


def compile_for_cluster(given: argparse.Namespace, config: RunConfig, path: Path) -> int:
    """Compile `config` for the cluster that the arguments describe; returns the IR's bytes. Raises ConfigError."""
    from pipelines.train import compile_pipeline

    check_task_budget(config.rounds)
    return compile_pipeline(config, path, placement_of(given, config))


def placement_of(given: argparse.Namespace, config: RunConfig) -> "ClusterPlacement":
    """The placement file with the arguments on top, and as many GPUs as `config` has use for. Raises ConfigError."""
    from pipelines.placement import load_placement

    placement = load_placement(Path(given.placement) if given.placement else None)
    said: dict[str, Any] = {"registry": given.registry, "tag": given.tag}
    if given.cpu or config.runtime.device == "cpu":
        said["gpus"] = False
    placement = placement.model_copy(update={name: value for name, value in said.items() if value is not None})
    return placement.for_processes(config.runtime.processes)
