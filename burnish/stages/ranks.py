"""Training in several processes: torchrun starts them, each trains on its part of the rows, rank 0 writes.

The stage's own process prepares the inputs and waits; what is half-written lies in its work folder, which nobody sees.
"""

import contextlib
import ctypes
import dataclasses
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from burnish.contracts import errors
from burnish.contracts.artifacts import Manifest
from burnish.contracts.config import RunConfig, RuntimeConfig
from burnish.contracts.errors import BurnishError, ConfigError, StageError
from burnish.contracts.stages import STAGES
from burnish.models.parallel import Ranks
from burnish.models.runtime import choose_device
from burnish.stages.entry import StageContext, StageResult

Train = Callable[[StageContext, Ranks], StageResult]

_JOB_FILE, _RESULT_FILE = "job.json", "result.json"
# Ranks wait for each other this long: for the slowest to load its model, and at the end for rank 0 to write.
_PATIENCE = timedelta(hours=1)
_PR_SET_PDEATHSIG = 1


def train_on_ranks(context: StageContext, train: Train) -> StageResult:
    """`train`, a stage module's function of that name, in as many processes as `runtime.processes` says.

    With one process it is called right here. Under torchrun, as a Kubeflow TrainJob starts it on several nodes, this
    process is one rank already: nothing is launched, and all but rank 0 end after training, without publishing.
    Raises the error that a rank failed with; a rank that was killed is a StageError.
    """
    if dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        result, ranks = _train_as_rank(context, train)
        if ranks.rank:
            sys.exit(0)
        return result
    world = count_processes(context.config.runtime)
    if world == 1:
        return train(context, Ranks())
    for name in context.stage.reads:
        context.input_dir(name)
    job = {
        "stage": context.stage.name,
        "config": context.config.model_dump(mode="json", include=set(context.stage.sections)),
        "run_id": context.run_id,
        "round": context.round,
        "label": context.label,
        "inputs": {name: manifest.model_dump(mode="json") for name, manifest in context.inputs.items()},
    }
    (context.workdir / _JOB_FILE).write_text(json.dumps(job), "utf-8")
    _launch(context, world)
    return StageResult(**json.loads((context.workdir / _RESULT_FILE).read_text("utf-8")))


def count_processes(runtime: RuntimeConfig) -> int:
    """Processes that train together on this machine. Raises ConfigError when it has fewer GPUs than asked for."""
    if choose_device(runtime).type == "cpu":
        return runtime.processes or 1
    found = torch.cuda.device_count()
    if runtime.processes > found:
        raise ConfigError(
            f"runtime.processes is {runtime.processes}: torch sees {found} GPUs here; use at most {found}"
        )
    return runtime.processes or found


def _launch(context: StageContext, world: int) -> None:
    """Run `world` ranks of the job in the work folder, all to their end or none further than the first failure."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Its failures are told in one line, below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        run_id=context.run_id,
        # torchrun would listen on every interface of the machine, and unpickle what it is sent.
        rdzv_backend="c10d",
        rdzv_endpoint=str(context.workdir / "launcher"),
        rdzv_configs={"store_type": "file"},
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(str(context.workdir / "launcher-logs")),
    )
    threads = context.config.runtime.threads or max(1, len(os.sched_getaffinity(0)) // world)
    # Ranks inherit the environment; they and their launcher meet in files and talk on this machine alone.
    inherited = {
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with _environment(inherited), _signal_handlers_kept():
        try:
            elastic_launch(launch, sys.executable)("-m", "burnish.stages.ranks", str(context.workdir))
        except ChildFailedError as error:
            raise _failure(context, error.failures) from None


def _failure(context: StageContext, failures: dict[int, Any]) -> BurnishError:
    """What to tell of `failures`, by rank: the error that one explained, before those that followed from it."""
    reports = [json.loads(path.read_text("utf-8")) for path in context.workdir.glob("error-*.json")]
    reports.sort(key=lambda report: report["time"])
    explained = next((report for report in reports if report["kind"]), None)
    if explained:
        known: type[BurnishError] = getattr(errors, explained["kind"])
        return known(explained["message"])
    for rank, failure in sorted(failures.items()):
        # SIGTERM is what ended the others.
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return StageError(
                f"{context.title}: rank {rank} was killed by {signal.Signals(-failure.exitcode).name}, so all ranks "
                "were stopped; nothing was written. If memory ran out, lower token_budget or runtime.processes"
            )
    if reports:
        return StageError(f"{context.title}: rank {reports[0]['rank']} failed: {reports[0]['message']}")
    codes = ", ".join(f"{rank}: {failure.exitcode}" for rank, failure in sorted(failures.items()))
    return StageError(f"{context.title}: ranks ended before they were done, with exit codes {{{codes}}}")


def _train_as_rank(context: StageContext, train: Train, meet_at: str | None = None) -> tuple[StageResult, Ranks]:
    """Train as the rank that torchrun's variables say this process is.

    meet_at: where the ranks find each other, a `file://` address on one machine; None: where those variables say.
    """
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    on_gpu = choose_device(context.config.runtime).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Figures are exchanged from the CPU in either case.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, meet_at, _PATIENCE, rank=ranks.rank, world_size=ranks.world)
    try:
        # Rank 0 speaks for all.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere if ranks.rank else sys.stdout):
            return train(context, ranks), ranks
    finally:
        dist.destroy_process_group()


def _rank_main(workdir: Path) -> None:
    """One launched rank of the job in `workdir`; writes rank 0's result, or the error of this one, beside it."""
    # A stage that is killed takes its ranks with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    job = json.loads((workdir / _JOB_FILE).read_text("utf-8"))
    stage = STAGES[job["stage"]]
    prepared: Any = None
    context = StageContext(
        stage=stage,
        config=RunConfig.model_validate(job["config"]).view(stage.sections),
        run_id=job["run_id"],
        round=job["round"],
        label=job["label"],
        store=prepared,
        inputs={name: Manifest.model_validate(manifest) for name, manifest in job["inputs"].items()},
        workdir=workdir,
    )
    try:
        train: Train = importlib.import_module(f"burnish.stages.{stage.name}").train
        result, ranks = _train_as_rank(context, train, f"file://{workdir / 'ranks'}")
    except Exception as error:
        _report(workdir, int(os.environ["RANK"]), error)
        if not isinstance(error, BurnishError):
            raise
        sys.exit(error.exit_code)
    if ranks.rank == 0:
        (workdir / _RESULT_FILE).write_text(json.dumps(dataclasses.asdict(result)), "utf-8")


def _report(workdir: Path, rank: int, error: Exception) -> None:
    """Leave `error` for the stage's process; an error people are meant to read arrives there as it is here."""
    known = [kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind]
    message = str(error) if known else f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    report = {"rank": rank, "kind": known[0] if known else None, "message": message, "time": time.time()}
    (workdir / f"error-{rank}.json").write_text(json.dumps(report), "utf-8")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """The launcher takes the signals that end a process and does not give them back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    _rank_main(Path(sys.argv[1]))
