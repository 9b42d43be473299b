"""Workers: a sandbox that dies costs a retry, and a run can be ended from outside at any moment."""

import os
import signal
import threading
import time

import pytest

from sandbox.jobs import Job
from sandbox.limits import Limits
from sandbox.process import SandboxUnavailable
from sandbox.verdicts import Sandbox
from sandbox.worker import Run, Worker
from sandbox.worker_pool import WorkerPool

SPEC = {"entry_point": "f", "tests": [{"expected": 1}, {"expected": 1}]}
GOOD = "def f(): return 1"
ENDLESS = "def f():\n    while True: pass"


def job(code=GOOD, wall_s=20.0):
    return Job("x", code, SPEC, limits=Limits(wall_s=wall_s))


def kill_zygote(worker):
    os.kill(worker._sandbox._zygote._process.pid, signal.SIGKILL)


def test_the_limits_are_those_of_the_job():
    with Worker() as worker:
        assert worker.run(Run(job(ENDLESS, wall_s=0.3))).verdicts == ("timeout", "timeout")
        assert worker.run(Run(job())).verdicts == ("passed", "passed")


def test_a_sandbox_that_dies_under_a_job_is_replaced_and_the_job_gets_its_verdict():
    with Worker() as worker:
        worker.open()
        killer = threading.Timer(0.3, kill_zygote, (worker,))
        killer.start()
        result = worker.run(Run(job("import time\ndef f():\n    time.sleep(0.6)\n    return 1")))
        killer.join()
        assert result.verdicts == ("passed", "passed")
        assert worker.restarts == 1


def test_a_sandbox_that_dies_twice_under_a_job_gives_internal_and_the_next_job_runs():
    with Worker() as worker:
        opened = worker.open

        def fatal():
            sandbox = opened()
            threading.Timer(0.3, kill_zygote, (worker,)).start()
            return sandbox

        worker.open = fatal
        result = worker.run(Run(job("import time\ndef f(): time.sleep(5)")))
        worker.open = opened
        assert result.verdicts == ("internal", "internal")
        assert worker.run(Run(job())).verdicts == ("passed", "passed")


def test_a_sandbox_that_cannot_be_opened_gives_internal_with_the_reason(monkeypatch):
    def refuse(self, *_, **__):
        raise SandboxUnavailable("no room for a zygote")

    with Worker() as worker:
        monkeypatch.setattr(Sandbox, "__init__", refuse)
        result = worker.run(Run(job()))
        assert result.verdicts == ("internal", "internal")
        assert "no room for a zygote" in result.details[0]


def test_an_interrupted_run_ends_at_once_and_the_next_one_is_not_touched_by_it():
    with Worker() as worker:
        run = Run(job(ENDLESS))
        timer = threading.Timer(0.3, lambda: (setattr(run, "interrupted", True), worker.interrupt(run)))
        started = time.monotonic()
        timer.start()
        assert worker.run(run).verdicts == ("internal", "internal")
        assert time.monotonic() - started < 3
        assert worker.restarts == 0
        worker.interrupt(run)  # too late: it must not hit what runs next
        assert worker.run(Run(job())).verdicts == ("passed", "passed")


class Outcomes:
    def __init__(self):
        self.by_run, self.news = {}, threading.Semaphore(0)

    def __call__(self, run, outcome):
        self.by_run[run] = outcome
        self.news.release()

    def wait(self, count):
        for _ in range(count):
            assert self.news.acquire(timeout=20)


def test_a_pool_hands_back_every_run_and_a_run_interrupted_before_it_begins_never_does():
    outcomes = Outcomes()
    pool = WorkerPool(1, outcomes)
    try:
        endless, waiting, good = pool.submit(job(ENDLESS)), pool.submit(job(ENDLESS)), pool.submit(job())
        pool.interrupt(waiting)
        time.sleep(0.2)
        pool.interrupt(endless)
        outcomes.wait(3)
        assert outcomes.by_run[good].verdicts == ("passed", "passed")
        assert outcomes.by_run[endless].details[0] == outcomes.by_run[waiting].details[0] == "interrupted"
        assert outcomes.by_run[waiting].seconds == 0
    finally:
        pool.close()


def test_closing_a_pool_ends_what_runs_and_leaves_no_thread():
    before = threading.active_count()
    pool = WorkerPool(2, Outcomes())
    for _ in range(5):
        pool.submit(job(ENDLESS))
    time.sleep(0.3)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 3
    assert threading.active_count() == before


def test_a_defect_in_a_worker_is_handed_back_and_the_worker_goes_on(monkeypatch):
    outcomes = Outcomes()
    pool = WorkerPool(1, outcomes)
    try:
        broken = pool.submit(Job("x", GOOD, {"tests": "not what parse_spec takes"}))
        good = pool.submit(job())
        outcomes.wait(2)
        assert isinstance(outcomes.by_run[broken], ValueError)
        assert outcomes.by_run[good].verdicts == ("passed", "passed")
    finally:
        pool.close()


def test_a_pool_on_a_machine_that_cannot_confine_is_refused(monkeypatch):
    def refuse(self, *_, **__):
        raise SandboxUnavailable("this machine lacks Landlock")

    monkeypatch.setattr(Sandbox, "__init__", refuse)
    with pytest.raises(SandboxUnavailable, match="Landlock"):
        WorkerPool(2, Outcomes())
