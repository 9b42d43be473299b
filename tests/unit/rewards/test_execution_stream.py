"""Streaming through a backend: the order of the samples, a bounded window, and memory that does not grow."""

import random
import resource
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.errors import ContractError
from burnish.rewards import execution
from burnish.rewards.execution import in_order
from sandbox.jobs import Job
from sandbox.verdicts import Result


def result(verdict="passed", stdout=""):
    return Result((verdict,), ("",), stdout, "", 0.0, False)


def jobs(count):
    for number in range(count):
        yield f"sample-{number}", Job(f"job-{number}", f"# {number}", {"tests": []})


class FakeBackend:
    """Finishes what is in flight in an order of its own, some at a time."""

    def __init__(self, capacity=8, seed=0, held=()):
        self.capacity = capacity
        self.held = set(held)
        """Jobs that finish only when nothing else is in flight."""
        self.flying, self.most = [], 0
        self._random = random.Random(seed)

    def submit(self, job):
        assert len(self.flying) < self.capacity
        self.flying.append(job.job_id)
        self.most = max(self.most, len(self.flying))

    def collect(self):
        free = [job_id for job_id in self.flying if job_id not in self.held] or list(self.flying)
        done = self._random.sample(free, self._random.randint(1, len(free)))
        self.flying = [job_id for job_id in self.flying if job_id not in done]
        return [(job_id, result(stdout=job_id)) for job_id in done]

    def close(self):
        pass


@given(count=st.integers(0, 60), capacity=st.integers(1, 9), seed=st.integers(0, 99))
def test_results_come_in_the_order_of_the_jobs_whatever_finishes_first(count, capacity, seed):
    backend = FakeBackend(capacity, seed)
    found = list(in_order(backend, jobs(count)))
    assert [(name, row.stdout) for name, row in found] == [(f"sample-{n}", f"job-{n}") for n in range(count)]
    assert backend.most <= capacity


def test_a_slow_job_holds_back_at_most_a_window_of_results(monkeypatch):
    monkeypatch.setattr(execution, "_WINDOW", 20)
    backend = FakeBackend(capacity=4, held={"job-0"})
    taken = []

    def counted():
        for job in jobs(100):
            taken.append(job)
            yield job

    stream = in_order(backend, counted())
    assert next(stream)[0] == "sample-0"
    assert len(taken) == 20
    assert [name for name, _ in stream] == [f"sample-{number}" for number in range(1, 100)]


def test_the_same_job_twice_is_a_broken_contract():
    with pytest.raises(ContractError, match="rollout b is there twice"):
        list(in_order(FakeBackend(), [("a", Job("x", "", {})), ("b", Job("x", "", {}))]))


def test_fifty_thousand_jobs_take_no_more_memory_than_five_thousand():
    def peak(count):
        tracemalloc.start()
        seen = sum(1 for _ in in_order(FakeBackend(capacity=64, held={"job-0"}), jobs(count)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == count
        return most

    few = peak(5_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many = peak(50_000)
    assert many < 1.2 * few
    assert many < 20e6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
