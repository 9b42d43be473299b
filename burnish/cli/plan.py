"""`burnish plan`: what a run would be, without running: resolved settings, the DAG, tasks, size of the IR, cost."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.cli.compile import add_cluster_arguments, compile_for_cluster, placement_of
from burnish.cli.cost_estimate import estimate
from burnish.cli.home import run_id_of
from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import dump_config
from burnish.contracts.stages import MAX_TASKS, STAGES, dag_tasks

if TYPE_CHECKING:
    from pipelines.placement import ClusterPlacement


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("plan", help="show settings, DAG, tasks and IR size without running")
    add_config_arguments(parser)
    add_cluster_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    config = config_of(given)
    print(dump_config(config))
    print(draw_dag(config))
    placement = placement_of(given, config)
    print(draw_pods(placement))
    with tempfile.TemporaryDirectory(prefix="burnish-plan-") as folder:
        size = compile_for_cluster(given, config, Path(folder) / "ir.yaml")
    samples = config.rollout.prompts_per_round * config.rollout.samples_per_prompt
    steps = config.rounds * config.update.steps * config.update.epochs
    print(f"run id       {run_id_of(config)}")
    tasks = dag_tasks(config.rounds, config.rollout.shards, config.execute_shards)
    print(f"tasks        {tasks} of at most {MAX_TASKS}")
    print(f"IR           {size} bytes")
    print(f"samples      {samples} a round, {samples * config.rounds} in all")
    print(f"completions  up to {config.rollout.max_new_tokens} tokens")
    print(f"optimizer    {steps} steps")
    print(f"cost         {estimate(config, placement)}")
    return 0


def draw_pods(placement: "ClusterPlacement") -> str:
    """What the pods of each stage ask for, one line a stage."""
    lines = [f"{'stage':<10}{'cpu':>5}{'memory':>9}  {'GPUs':<20}{'hours':>6}  image"]
    for stage in STAGES:
        asked = placement.of(stage)
        gpus = f"{asked.gpus} {asked.gpu_type}" if asked.gpus else "-"
        hours = f"{asked.timeout_s / 3600:g}" if asked.timeout_s else "-"
        lines.append(f"{stage:<10}{asked.cpu:>5}{asked.memory:>9}  {gpus:<20}{hours:>6}  {placement.image(stage)}")
    return "\n".join(lines) + "\n"


def draw_dag(config: RunConfig) -> str:
    """The DAG in text; rounds in the middle are left out."""
    lines = ["validate -> sft -+-> evaluate - before"]
    trunk = lines[0].index("+")
    shown = [1, 2, config.rounds] if config.rounds > 3 else list(range(1, config.rounds + 1))
    for index, round in enumerate(shown):
        if index and round - shown[index - 1] > 1:
            lines.append(" " * trunk + "...")
        source = max(0, round - 1 - config.max_staleness)
        head = f"  round {round}".ljust(trunk) + f"+-> rollout{_times(config.rollout.shards)} (policy {source}) -"
        upper, lower = head + f"+-> execute{_times(config.execute_shards)} -> reward -", " " * trunk + "|"
        lines.append(upper + "+")
        lines.append(lower.ljust(len(head)) + "|".ljust(len(upper) - len(head)) + f"+-> update -> policy {round}")
        lines.append(lower.ljust(len(head)) + "+-> logprob ".ljust(len(upper) - len(head), "-") + "+")
    if config.rounds:
        lines.append(" " * trunk + "+-> evaluate - after")
    lines.append("report (exit handler, always)\n")
    return "\n".join(lines)


def _times(shards: int) -> str:
    return f" x {shards}" if shards > 1 else ""
