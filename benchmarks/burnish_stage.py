"""One of Burnish's stages as it is, with a clock around the functions that do its work.

Usage: python burnish_stage.py STAGE CONFIG.yaml MANIFESTS CLOCK; MANIFESTS is a folder of <artifact name>.json. The
last line of its output is JSON: seconds by phase; what is in none of them is starting, loading and saving.
"""

import contextlib
import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from workload import CLOCKS, lifetime, peak_memory_mb, report

from burnish.contracts.stages import STAGES
from burnish.stages.entry import run_stage

# Where each stage's work is done. Finding out what a model allows and planning its batches belong to it.
_WORK = {
    "rollout": ("burnish.stages.rollout", ("sample_prompts",)),
    "logprob": ("burnish.stages.logprob", ("probe_model", "plan_batches", "completion_states", "state_logprobs")),
    "update": ("burnish.stages.update", ("ParallelPolicy", "PolicyTrainer.step")),
}


def run(stage: str, config: Path, manifests: Path, clock: str) -> dict[str, Any]:
    """Run `stage` in round 1 of the run `benchmark`; returns seconds by phase, the rest, and the peak memory so far."""
    seconds: dict[str, float] = defaultdict(float)
    now = CLOCKS[clock]
    started = now()
    with _clocks(stage, seconds, now):
        record = run_stage(
            stage,
            config_path=str(config),
            run_id="benchmark",
            inputs={name: str(manifests / f"{name}.json") for name in STAGES[stage].reads},
            outputs={name: str(manifests / f"{name}.json") for name in STAGES[stage].writes},
            round=1,
        )
    return {
        "seconds": dict(seconds),
        "overhead": now() - started - sum(seconds.values()),
        "timings": record.timings,
        "metrics": record.metrics,
        "peak_mb": peak_memory_mb(),
    }


@contextlib.contextmanager
def _clocks(stage: str, seconds: dict[str, float], now: Callable[[], float]) -> Iterator[None]:
    module_name, functions = _WORK[stage]
    module = importlib.import_module(module_name)
    phases = iter(("update",) if stage == "update" else ("old_logprob", "ref_logprob"))
    phase = ""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal phase
            # Every model is probed once, before anything else: first the policy, then the reference.
            if name in ("probe_model", "ParallelPolicy"):
                phase = next(phases)
            started = now()
            result = function(*args, **kwargs)
            seconds[phase] += now() - started
            return result

        def rows(*args: Any, **kwargs: Any) -> Iterator[Any]:
            drawn = function(*args, **kwargs)
            while True:
                started = now()
                row = next(drawn, None)
                seconds["generation"] += now() - started
                if row is None:
                    return
                yield row

        return rows if stage == "rollout" else call

    with contextlib.ExitStack() as stack:
        for name in functions:
            owner, _, attribute = name.rpartition(".")
            target = getattr(module, owner) if owner else module
            stack.enter_context(mock.patch.object(target, attribute, timed(name, getattr(target, attribute))))
        yield


if __name__ == "__main__":
    start = lifetime(sys.argv[4])
    result = run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    report(result | {"overhead": start + result["overhead"]})
