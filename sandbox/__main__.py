"""`python -m sandbox`: `serve` is the service, `check` the attack suite, `run` one program; `languages` lists those.

All hold what programs must not see, so all make their memory unreadable to others of the same user.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from sandbox import languages, libc
from sandbox.enclosure import ENCLOSURES
from sandbox.first_process import leave_first_place
from sandbox.job_table import Bounds
from sandbox.jobs import JobError, parse_job, result_to_json
from sandbox.limits import Limits
from sandbox.process import SandboxUnavailable
from sandbox.serve import JsonLog, serve
from sandbox.service import Settings
from sandbox.worker import Run, Worker

TOKEN_VARIABLE = "BURNISH_SANDBOX_TOKEN"
_PR_SET_DUMPABLE = 4


def main(argv: Sequence[str] | None = None, prog: str = "python -m sandbox") -> int:
    """The exit status; 1 when an attack or a test says so, 2 when something given is wrong, 3 when this machine
    cannot confine programs."""
    given = _parser(prog).parse_args(argv)
    # Before the fork below, which keeps it.
    libc.prctl(_PR_SET_DUMPABLE, 0)
    try:
        if given.command == "serve":
            leave_first_place()
            serve(_settings(given), given.host, given.port, JsonLog(given.log_level))
        elif given.command == "check":
            from sandbox import check  # two hundred attacks that `run-job` need not wait for

            return check.main(
                as_json=given.json, only=given.only, allow_degraded=given.allow_degraded, enclosure=given.enclosure
            )
        elif given.command == "run":
            from sandbox import run_program

            limits = Limits(**{limit.name: getattr(given, limit.name) for limit in fields(Limits)})
            return run_program.main(
                given.program, given.tests, limits, as_json=given.json, allow_degraded=given.allow_degraded
            )
        elif given.command == "languages":
            print(languages.table())
        else:
            run_job(given.allow_degraded, given.preload, given.enclosure)
    except SandboxUnavailable as error:
        print(f"error: {error}; --allow-degraded goes on without", file=sys.stderr)
        return 3
    except (JobError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run_job(allow_degraded: bool, preload: Sequence[str], enclosure: str) -> None:
    """One job as JSON on standard input, its result as JSON on standard output. Raises JobError."""
    job = parse_job(json.load(sys.stdin.buffer), job_id="job")
    with Worker(allow_degraded, preload, enclosure) as worker:
        worker.open()
        print(json.dumps(result_to_json(worker.run(Run(job)))), flush=True)


def _settings(given: argparse.Namespace) -> Settings:
    most = {limit.name: getattr(given, f"max_{limit.name}") for limit in fields(Limits)}
    return Settings(
        workers=given.workers,
        most=Limits(**most),
        bounds=Bounds(given.queue, given.queue_per_owner, given.memory_mb, given.ttl_s),
        drain_s=given.drain_s,
        allow_degraded=given.allow_degraded,
        preload=tuple(given.preload),
        enclosure=given.enclosure,
        token=_token(given.token_file),
    )


def _token(file: Path | None) -> str | None:
    """From a file, which a Secret can be mounted as, or from the environment."""
    token = file.read_text("utf-8").strip() if file else os.environ.pop(TOKEN_VARIABLE, "").strip()
    if file and not token:
        raise ValueError(f"token file {str(file)!r} is empty")
    return token or None


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Run code that a model wrote.")
    commands = parser.add_subparsers(dest="command", required=True)
    service = commands.add_parser(
        "serve", help="the HTTP service", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    settings, bounds = Settings(), Bounds()
    service.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    service.add_argument("--port", type=int, default=8000, help="0 for any that is free; the log says which")
    service.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="programs at a time")
    service.add_argument("--queue", type=int, default=bounds.queue, help="jobs that may wait")
    service.add_argument("--queue-per-owner", type=int, default=bounds.queue_per_owner, help="of one owner")
    service.add_argument("--memory-mb", type=int, default=bounds.memory_mb, help="for queued jobs and results")
    service.add_argument("--ttl-s", type=float, default=bounds.ttl_s, help="a job nobody asks for lives this long")
    service.add_argument("--drain-s", type=float, default=settings.drain_s, help="for running jobs, after SIGTERM")
    service.add_argument("--token-file", type=Path, help=f"bearer token of clients; or {TOKEN_VARIABLE}; else none")
    service.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    for limit in fields(Limits):
        default = getattr(settings.most, limit.name)
        name = f"--max-{limit.name.replace('_', '-')}"
        service.add_argument(name, type=type(default), default=default, help="most that a job may ask for")
    commands.add_parser("languages", help="what programs may be written in here, and what is missing for the rest")
    job = commands.add_parser("run-job", help="one job as JSON on standard input, the result on standard output")
    suite = commands.add_parser("check", help="the attack suite on this machine: what was stopped, by which layer")
    suite.add_argument("--only", metavar="FAMILY", help="one family of attacks")
    program = commands.add_parser(
        "run", help="one program against its tests", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    program.add_argument("program", type=Path, help="file with the program")
    program.add_argument("--tests", type=Path, required=True, help="file with {tests: [...], entry_point, language}")
    for limit in fields(Limits):
        name = f"--{limit.name.replace('_', '-')}"
        program.add_argument(name, type=type(limit.default), default=limit.default, help="limit of this run")
    for command in (service, job):
        command.add_argument("--preload", action="append", default=[], metavar="MODULE", help="such as numpy")
    for command in (service, job, suite):
        command.add_argument("--enclosure", choices=ENCLOSURES, default="none", help="a second jail around all")
    for command in (suite, program):
        command.add_argument("--json", action="store_true", help="for other programs to read")
    for command in (service, job, suite, program):
        command.add_argument("--allow-degraded", action="store_true", help="run without Landlock or seccomp; see docs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
