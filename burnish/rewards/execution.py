"""From rollouts to executions, shared by the stages execute and evaluate: samples stream through a backend.

Memory stays constant however many there are, and the order is that of the rollouts, whatever finishes first. Samples
whose verifier needs no execution give no row.
"""

import hashlib
import re
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import cast

from burnish.contracts.errors import ContractError
from burnish.contracts.execution import ExecuteConfig
from burnish.contracts.records import Execution, Prompt, Rollout, Verdict
from burnish.rewards.backends import open_backend
from burnish.rewards.backends.backend import Backend
from burnish.rewards.extraction import extract_code, extract_program
from sandbox.jobs import Job
from sandbox.limits import Limits
from sandbox.spec import SpecError, parse_spec
from sandbox.verdicts import Result

# Results that wait for an earlier one: a job at its time limit must not stop the hundreds a second behind it.
_WINDOW = 4096


def needs_execution(prompt: Prompt) -> bool:
    """Whether the prompt's answers are checked by running them."""
    return prompt.verifier.get("kind") == "code"


def execute_rollouts(
    rollouts: Iterable[Rollout], prompts_by_id: Mapping[str, Prompt], config: ExecuteConfig, *, owner: str = ""
) -> Iterator[Execution]:
    """Run the code of each sample against its prompt's tests; executions come in the order of the rollouts.

    `owner` is who a shared service runs them for; empty: this machine. Raises ContractError for a sample whose prompt
    is missing or has no valid tests, StageError when the backend cannot run programs.
    """
    jobs = _jobs(rollouts, prompts_by_id, config, re.sub(r"[^\w.-]", "-", owner or socket.gethostname())[:100])
    first = next(jobs, None)
    if first is None:  # without code to run, no backend is opened
        return
    with closing(open_backend(config)) as backend:
        for sample_id, result in in_order(backend, chain([first], jobs)):
            yield Execution(
                sample_id=sample_id,
                verdicts=[cast(Verdict, verdict) for verdict in result.verdicts],
                details=list(result.details),
                stdout_head=result.stdout,
                stderr_head=result.stderr,
                seconds=result.seconds,
                degraded=result.degraded,
            )


def in_order(backend: Backend, jobs: Iterable[tuple[str, Job]]) -> Iterator[tuple[str, Result]]:
    """The names of `jobs` with the jobs' results, in order; never more than a window of them in memory.

    Raises ContractError when a job comes twice.
    """
    source = iter(jobs)
    exhausted = False
    waiting: deque[tuple[str, str]] = deque()  # name and job id, in order
    results: dict[str, Result | None] = {}  # of those waiting; None while in flight
    flying = 0
    while True:
        while not exhausted and flying < backend.capacity and len(waiting) < _WINDOW:
            following = next(source, None)
            if following is None:
                exhausted = True
                break
            name, job = following
            if job.job_id in results:
                raise ContractError(f"rollout {name} is there twice")
            waiting.append((name, job.job_id))
            results[job.job_id] = None
            flying += 1
            backend.submit(job)
        if not waiting:
            return
        for job_id, result in backend.collect():
            results[job_id] = result
            flying -= 1
        while waiting and (ready := results[waiting[0][1]]) is not None:
            name, job_id = waiting.popleft()
            del results[job_id]
            yield name, ready


def _jobs(
    rollouts: Iterable[Rollout], prompts_by_id: Mapping[str, Prompt], config: ExecuteConfig, owner: str
) -> Iterator[tuple[str, Job]]:
    limits = Limits(
        wall_s=config.timeout_s,
        memory_mb=config.memory_mb,
        output_kb=config.output_kb,
        disk_mb=config.disk_mb,
        processes=config.processes,
        compile_s=config.compile_s,
    )
    for rollout in rollouts:
        prompt = prompts_by_id.get(rollout.prompt_id)
        if prompt is None:
            raise ContractError(f"rollout {rollout.sample_id}: prompt {rollout.prompt_id} is not among the prompts")
        if not needs_execution(prompt):
            continue
        try:
            spec = parse_spec(prompt.verifier)
        except SpecError as error:
            raise ContractError(f"prompt {prompt.prompt_id}: verifier: {error}") from None
        if spec.language == "python":
            code = extract_code(rollout.text, spec.entry_point, spec.context)
        else:
            code = extract_program(rollout.text, spec.language)
        job = Job("", code, prompt.verifier, owner, limits)
        # The same sample with the same content is the same job, in whichever attempt of the stage.
        digest = hashlib.sha256(rollout.sample_id.encode() + b"\0" + job.to_json()).hexdigest()
        yield rollout.sample_id, replace(job, job_id=digest)
