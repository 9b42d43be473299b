"""The table of jobs: bounds, turns, ids that may be given again, and what is forgotten when."""

import pytest

from sandbox.job_table import Bounds, JobConflict, JobTable, TableFull
from sandbox.jobs import Job

SPEC = {"tests": [{"stdin": "", "stdout": ""}]}


def job(job_id, owner="me", code="pass"):
    return Job(job_id, code, SPEC, owner)


def table(**bounds):
    return JobTable(Bounds(**bounds))


def test_owners_take_turns_however_much_one_of_them_queues():
    jobs = table()
    for number in range(3):
        jobs.submit(job(f"a{number}", "a"), 0)
    jobs.submit(job("b0", "b"), 0)
    jobs.submit(job("c0", "c"), 0)
    order = [jobs.start_next(1).job_id for _ in range(5)]
    assert order == ["a0", "b0", "c0", "a1", "a2"]
    assert jobs.start_next(1) is None


def test_the_same_id_with_the_same_content_is_the_same_job_and_with_other_content_a_conflict():
    jobs = table()
    first = jobs.submit(job("x"), 0)
    assert jobs.submit(job("x"), 1) is first
    assert jobs.queued == 1
    for other in (job("x", code="1"), job("x", owner="other"), Job("x", "pass", {"tests": [{"source": ""}]}, "me")):
        with pytest.raises(JobConflict):
            jobs.submit(other, 1)


def test_each_bound_refuses_with_its_reason():
    full = table(queue=2, queue_per_owner=1)
    full.submit(job("a0", "a"), 0)
    with pytest.raises(TableFull, match="a has 1 jobs queued") as refusal:
        full.submit(job("a1", "a"), 0)
    assert refusal.value.reason == "owner"
    full.submit(job("b0", "b"), 0)
    with pytest.raises(TableFull) as refusal:
        full.submit(job("c0", "c"), 0)
    assert refusal.value.reason == "queue"
    assert full.submit(job("a0", "a"), 0).job_id == "a0"  # known already, so no more room is needed
    small = table(memory_mb=1)
    small.submit(job("a", code="x" * 700_000), 0)
    with pytest.raises(TableFull) as refusal:
        small.submit(job("b", code="x" * 700_000), 0)
    assert refusal.value.reason == "memory"


def test_memory_is_given_back_when_jobs_finish_and_when_they_are_forgotten():
    jobs = table()
    for number in range(20):
        jobs.submit(job(f"{number}", code="x" * 10_000), 0)
    assert jobs.memory > 200_000
    for _ in range(10):
        jobs.finish(jobs.start_next(0), {"verdicts": ["passed"]}, 0)
    assert 100_000 < jobs.memory < 150_000
    for number in range(20):
        jobs.remove(f"{number}")
    assert (jobs.memory, jobs.queued, jobs.entries) == (0, 0, {})
    assert jobs.start_next(0) is None


def test_a_result_and_a_job_nobody_asks_for_are_forgotten_after_the_ttl():
    jobs = table(ttl_s=10)
    for name in ("done", "running", "queued", "asked"):
        jobs.submit(job(name), 0)
    done = jobs.start_next(0)
    jobs.finish(done, {}, 4)
    running = jobs.start_next(0)
    jobs.entries["asked"].touched = 8
    assert jobs.expire(10) == []
    assert {entry.job_id for entry in jobs.expire(12)} == {"running", "queued"}
    assert {entry.job_id for entry in jobs.expire(15)} == {"done"}
    assert set(jobs.entries) == {"asked"}
    jobs.finish(running, {"late": True}, 16)
    assert "running" not in jobs.entries
    assert jobs.start_next(16).job_id == "asked"


def test_an_id_is_free_again_once_its_job_is_forgotten_and_the_late_result_of_the_first_is_not_the_seconds():
    jobs = table()
    jobs.submit(job("x", code="1"), 0)
    first = jobs.start_next(0)
    jobs.remove("x")
    second = jobs.submit(job("x", code="2"), 0)
    jobs.finish(first, {"of": "first"}, 0)
    assert second.state == "queued"
    assert second.result is None


def test_whoever_waits_is_woken_by_the_end_and_by_being_forgotten():
    jobs = table()
    woken = []
    for name in ("a", "b"):
        jobs.submit(job(name), 0).waiters.add(lambda name=name: woken.append(name))
    jobs.finish(jobs.start_next(0), {}, 0)
    jobs.drop_queued()
    assert woken == ["a", "b"]
    assert set(jobs.entries) == {"a"}
