"""`burnish compile`: the IR that a cluster's KFP takes, with every stage's image, resources, secrets and retries."""

import argparse
from pathlib import Path

from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.config import RunConfig
from burnish.contracts.stages import check_task_budget, dag_tasks


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("compile", help="write the pipeline's IR for a cluster")
    add_config_arguments(parser)
    parser.add_argument("-o", "--output", default=None, help="IR file (default: pipelines/compiled/<name>.yaml)")
    add_cluster_arguments(parser)
    parser.set_defaults(handler=handle)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """What the IR says about the cluster."""
    parser.add_argument("--registry", default="burnish", help="prefix of every stage image")
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
    from pipelines.placement import ClusterPlacement
    from pipelines.train import compile_pipeline

    check_task_budget(config.rounds)
    place = ClusterPlacement(given.registry, gpus=not given.cpu, **({"tag": given.tag} if given.tag else {}))
    return compile_pipeline(config, path, place)
