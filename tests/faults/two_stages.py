"""A run of two small stages in a process of its own, started from a clean one within milliseconds.

`make` writes two files; `double` reads them and writes two artifacts. All bytes follow from run, round and seed
unless SALT says otherwise.
"""

import contextlib
import multiprocessing
import os
import sys
import time
import traceback
import types
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random

import minio.time

from burnish.contracts import stages as stage_table
from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.errors import BurnishError
from burnish.contracts.stages import Stage
from burnish.stages import keys
from burnish.stages.entry import StageContext, StageResult, run_stage
from burnish.store.s3 import S3Backend

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["burnish.stages.entry", "burnish.store.s3", "multiprocessing.popen_forkserver"])

PATIENCE = "FAULTS_TEST_PATIENCE"
"""In a process's environment: how often it repeats a request, for tests that do not want to wait for minutes."""
SALT = "FAULTS_TEST_SALT"
"""In a process's environment: makes the bytes of its `make` others, as those of a GPU may be each time."""
SKEW = "FAULTS_TEST_SKEW"
"""In a process's environment: seconds by which its clock is wrong."""
TRACKED = "FAULTS_TEST_TRACKED"
"""In a process's environment: `double` brings MLflow up to date."""
OUTPUTS = {"make": ("rollouts",), "double": ("rewards", "logprobs")}


def make(context: StageContext) -> StageResult:
    folder = context.output_dir("rollouts")
    (folder / "data").write_bytes(Random(f"{context.run_id} {context.seed} {os.environ.get(SALT)}").randbytes(40_000))
    (folder / "tokenizer").write_bytes(f"the same in all rounds of {context.run_id}".encode())
    return StageResult({"made": 1.0}, counts={"rollouts": {"rows": 1}})


def double(context: StageContext) -> StageResult:
    data = (context.input_dir("rollouts") / "data").read_bytes()
    (context.output_dir("rewards") / "data").write_bytes(data * 2)
    (context.output_dir("logprobs") / "data").write_bytes(data[::-1])
    return StageResult({"bytes": float(len(data))})


STAGES = {
    "make": (make, Stage("make", {}, {"rollouts": "rollouts"}, ("seed",))),
    "double": (
        double,
        Stage("double", {"rollouts": "rollouts"}, {"rewards": "rewards", "logprobs": "logprobs"}, ("seed",)),
    ),
}


def install() -> None:
    """Make the two stages known to this process."""
    # Somebody may be editing the checkout meanwhile.
    keys.code_digest = lambda: "code"
    for name, (run, stage) in STAGES.items():
        tracked = name == "double" and TRACKED in os.environ
        stage_table.STAGES[name] = replace(stage, tracked=tracked)
        module = types.ModuleType(f"burnish.stages.{name}")
        module.run = run  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module


def run_one(name: str, folder: Path, run_id: str, round: int = 1) -> StageRecord:
    """Run a stage with its manifests in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("name: faults\n")
    return run_stage(
        name,
        config_path=str(folder / "config.yaml"),
        run_id=run_id,
        round=round,
        inputs={key: str(folder / f"{key}.json") for key in STAGES[name][1].reads},
        outputs={key: str(folder / f"{key}.json") for key in STAGES[name][1].writes},
    )


@dataclass
class Process:
    """A run of stages in a process of its own, with its output in `log`."""

    process: multiprocessing.process.BaseProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status; the number of the signal, negative, when one ended it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"not over after {seconds} s: {self.log}")
        return self.process.exitcode

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def errors(self) -> list[str]:
        return [line for line in self.log.splitlines() if line.startswith("error: ")]

    def outputs(self) -> dict[str, str]:
        """Digest of each output's manifest, as those downstream would read it."""
        return {
            name: Manifest.from_json((self.folder / f"{name}.json").read_bytes(), name).digest
            for names in OUTPUTS.values()
            for name in names
            if (self.folder / f"{name}.json").exists()
        }


def start(
    environment: dict[str, str], folder: Path, run_id: str, round: int = 1, stages: tuple[str, ...] = tuple(STAGES)
) -> Process:
    """Start the stages, one after another, as pods with this environment would run them."""
    folder.mkdir(parents=True, exist_ok=True)
    process = CONTEXT.Process(target=_main, args=(environment, folder, run_id, round, stages))
    process.start()
    return Process(process, folder)


def _main(environment: dict[str, str], folder: Path, run_id: str, round: int, stages: tuple[str, ...]) -> None:
    os.environ.update(environment)
    patience = int(environment.get(PATIENCE, "0"))
    if patience:
        S3Backend.__init__.__kwdefaults__["patience"] = patience
    _set_clock(float(environment.get(SKEW, "0")))
    # Line by line: what a killed process said must be there.
    log = open(folder / "log", "w", buffering=1)  # noqa: SIM115
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        install()
        try:
            for name in stages:
                run_one(name, folder, run_id, round)
        except BurnishError as error:
            print(f"error: {error}", file=log)
            sys.exit(error.exit_code)
        except Exception:
            traceback.print_exc()
            sys.exit(99)


def _set_clock(skew_s: float) -> None:
    right, right_utc = time.time, minio.time.utcnow
    time.time = lambda: right() + skew_s
    minio.time.utcnow = lambda: right_utc() + timedelta(seconds=skew_s)
