"""From rollouts to executions: the client of the sandbox, shared by the stages execute and evaluate.

Each of `workers` threads owns one sandbox; samples whose verifier needs no execution give no row.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import cast

from burnish.contracts.config import ExecuteConfig
from burnish.contracts.errors import ContractError, StageError
from burnish.contracts.records import Execution, Prompt, Rollout, Verdict
from burnish.rewards.extraction import extract_code
from sandbox.limits import Limits
from sandbox.process import SandboxUnavailable
from sandbox.spec import Spec, SpecError, parse_spec
from sandbox.verdicts import Sandbox


def needs_execution(prompt: Prompt) -> bool:
    """Whether the prompt's answers are checked by running them."""
    return prompt.verifier.get("kind") == "code"


def execute_rollouts(
    rollouts: Iterable[Rollout], prompts_by_id: Mapping[str, Prompt], config: ExecuteConfig
) -> Iterator[Execution]:
    """Run the code of each sample against its prompt's tests, `config.workers` at a time, in no particular order.

    Raises ContractError for a sample whose prompt is missing or has no valid tests, StageError on a machine that
    cannot confine programs.
    """
    jobs = _jobs(rollouts, prompts_by_id)
    limits = Limits(wall_s=config.timeout_s, memory_mb=config.memory_mb, output_kb=config.output_kb)
    sandboxes: SimpleQueue[Sandbox] = SimpleQueue()
    opened: list[Sandbox] = []

    def run(sample_id: str, code: str, spec: Spec) -> Execution:
        sandbox = sandboxes.get()
        try:
            result = sandbox.run_tests(code, spec)
        finally:
            sandboxes.put(sandbox)
        return Execution(
            sample_id=sample_id,
            verdicts=[cast(Verdict, verdict) for verdict in result.verdicts],
            details=list(result.details),
            stdout_head=result.stdout,
            stderr_head=result.stderr,
            seconds=result.seconds,
            degraded=result.degraded,
        )

    pending: set[Future[Execution]] = set()
    pool = ThreadPoolExecutor(config.workers, thread_name_prefix="execute")
    try:
        for job in jobs:
            # The first jobs open the sandboxes: a stage without code to run never starts one.
            if len(opened) < config.workers:
                opened.append(_open(limits, config.allow_degraded))
                sandboxes.put(opened[-1])
            pending.add(pool.submit(run, *job))
            if len(pending) >= 2 * config.workers:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)
        for sandbox in opened:
            sandbox.close()


def _jobs(rollouts: Iterable[Rollout], prompts_by_id: Mapping[str, Prompt]) -> Iterator[tuple[str, str, Spec]]:
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
        yield rollout.sample_id, extract_code(rollout.text, spec.entry_point, spec.context), spec


def _open(limits: Limits, allow_degraded: bool) -> Sandbox:
    try:
        return Sandbox(limits, allow_degraded=allow_degraded)
    except SandboxUnavailable as error:
        raise StageError(
            f"execute: {error}; run on a machine that has it, or set execute.allow_degraded=true to go on without"
        ) from None
