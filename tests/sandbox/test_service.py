"""The service from outside: what it answers, what it refuses, and what it leaves when told to stop or when killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from liveness import alive
from running_service import ENDLESS, GOOD, SPEC, RunningService


@pytest.fixture(scope="module")
def service():
    with RunningService("--workers=2") as running:
        yield running


def eventually(check, seconds=10):
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def zygotes(service):
    """Pids of the service's children."""
    found = subprocess.run(["pgrep", "-P", str(service.process.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def test_a_job_is_run_and_answered_in_one_request(service):
    status, body, _ = service.ask("POST", "/v1/run", {"code": GOOD, "spec": SPEC})
    assert (status, body["state"], body["result"]["verdicts"]) == (200, "finished", ["passed", "passed"])
    assert body["result"]["degraded"] is False
    assert service.ask("GET", f"/v1/jobs/{body['job_id']}")[0] == 404  # nobody knew its id


def test_a_job_is_queued_polled_read_again_and_forgotten(service):
    status, body, _ = service.submit("one")
    assert (status, body["job_id"]) == (202, "one")
    assert service.result("one")["verdicts"] == ["passed", "passed"]
    status, body, _ = service.ask("GET", "/v1/jobs/one")
    assert (status, body["state"]) == (200, "finished")
    assert service.ask("DELETE", "/v1/jobs/one")[1]["was"] == "finished"
    assert service.ask("GET", "/v1/jobs/one")[0] == 404
    _, body, _ = service.ask("POST", "/v1/jobs/poll", {"ids": ["one"], "wait_s": 20})
    assert body == {"finished": [], "unknown": ["one"], "pending": 0}


def test_a_batch_is_queued_at_once_and_each_job_has_its_own_answer(service):
    jobs = [{"job_id": f"b{number}", "code": GOOD, "spec": SPEC} for number in range(8)]
    jobs[3] = {"job_id": "b3", "code": 7, "spec": SPEC}
    status, body, _ = service.ask("POST", "/v1/jobs", {"jobs": jobs})
    assert status == 202
    assert body["jobs"][3] == {"job_id": "b3", "status": 400, "error": "code must be a string"}
    ids = {job["job_id"] for job in jobs} - {"b3"}
    assert {answer["job_id"] for answer in body["jobs"]} - {"b3"} == ids
    found = set()
    while ids - found:
        _, body, _ = service.ask("POST", "/v1/jobs/poll", {"ids": sorted(ids - found), "wait_s": 20})
        assert body["finished"]
        found |= {view["job_id"] for view in body["finished"]}
    service.ask("POST", "/v1/jobs/poll", {"forget": sorted(ids)})
    assert service.ask("POST", "/v1/jobs/poll", {"ids": sorted(ids)})[1]["unknown"] == sorted(ids)


def test_the_same_job_twice_is_run_once_and_other_content_under_its_id_is_a_conflict(service):
    before = service.metric("sandbox_execution_seconds_count")
    for _ in range(3):
        assert service.submit("twice")[0] == 202
    first = service.result("twice")
    status, body, _ = service.submit("twice")
    assert (status, body["state"], body["result"]) == (202, "finished", first)
    assert service.ask("POST", "/v1/run", {"job_id": "twice", "code": GOOD, "spec": SPEC})[1]["result"] == first
    assert service.metric("sandbox_execution_seconds_count") == before + 1
    status, body, _ = service.submit("twice", code=GOOD + " ")
    assert status == 409
    assert "twice exists with other content" in body["error"]


def test_a_long_poll_answers_when_there_is_news_and_not_before(service):
    service.submit("slow", code="import time\ndef f(x):\n    time.sleep(0.3)\n    return x + 1")
    started = time.monotonic()
    assert service.result("slow", wait_s=0) is None
    assert time.monotonic() - started < 0.3
    assert service.result("slow")["verdicts"] == ["passed", "passed"]
    assert 0.5 < time.monotonic() - started < 5


def test_a_poll_may_wait_for_several(service):
    ids = [f"several{number}" for number in range(4)]
    for job_id in ids:
        service.submit(job_id)
    _, body, _ = service.ask("POST", "/v1/jobs/poll", {"ids": ids, "wait_s": 20, "least": 99})
    assert len(body["finished"]) == 4


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ([], "a job must be an object"),
        ({"code": GOOD}, "spec must be an object"),
        ({"code": GOOD, "spec": {"tests": []}}, "tests must be a list of at least one test"),
        ({"code": GOOD, "spec": SPEC, "limit": {}}, "no field 'limit'"),
        ({"code": GOOD, "spec": SPEC, "limits": {"wall": 1}}, "limits has no field 'wall'"),
        ({"code": GOOD, "spec": SPEC, "limits": {"wall_s": "1"}}, "limits.wall_s must be of type float"),
        ({"code": GOOD, "spec": SPEC, "limits": {"memory_mb": True}}, "limits.memory_mb must be of type int"),
        ({"code": GOOD, "spec": SPEC, "limits": {"wall_s": float("nan")}}, "limits.wall_s must be above 0"),
        ({"code": GOOD, "spec": SPEC, "job_id": "a\nb"}, "job_id must be 1 to 200"),
        ({"code": GOOD, "spec": SPEC, "owner": ""}, "owner must be 1 to 200"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_by_field(service, job, problem):
    for path in ("/v1/jobs", "/v1/run"):
        status, body, _ = service.ask("POST", path, job)
        assert status == 400
        assert problem in body["error"]


def test_paths_and_methods_that_do_not_exist_and_bodies_that_are_no_json_are_refused(service):
    assert service.ask("GET", "/v1/nothing")[0] == 404
    assert service.ask("PUT", "/v1/jobs")[0] == 405
    assert service.ask("GET", "/v1/run")[0] == 405
    assert service.ask("POST", "/v1/jobs", b"{")[0] == 400
    assert service.ask("POST", "/v1/jobs", "[" * 100_000)[0] == 400
    assert service.ask("POST", "/v1/jobs/poll", {"ids": "x"})[0] == 400
    assert service.ask("POST", "/v1/jobs/poll", {"ids": [], "wait_s": -1})[0] == 400
    assert service.ask("POST", "/v1/jobs/poll", {"ids": [], "least": 0})[0] == 400


def test_limits_of_a_job_are_capped_by_the_services():
    with RunningService("--max-wall-s=0.5", "--max-memory-mb=64") as strict:
        started = time.monotonic()
        job = {"code": ENDLESS, "spec": SPEC, "limits": {"wall_s": 1000.0, "memory_mb": 64000}}
        assert strict.ask("POST", "/v1/run", job)[1]["result"]["verdicts"] == ["timeout", "timeout"]
        assert time.monotonic() - started < 5
        hungry = {**job, "code": "def f(x):\n    kept = 'x' * 10**8\n    return x + 1"}
        assert strict.ask("POST", "/v1/run", hungry)[1]["result"]["verdicts"] == ["memory", "memory"]


def test_a_running_job_is_ended_when_cancelled_and_a_queued_one_never_runs():
    with RunningService("--workers=1") as single:
        single.submit("first", code=ENDLESS, limits={"wall_s": 50.0})
        single.submit("second", code=ENDLESS, limits={"wall_s": 50.0})
        assert eventually(lambda: single.metric("sandbox_running_jobs") == 1)
        assert single.ask("DELETE", "/v1/jobs/second")[1]["was"] == "queued"
        assert single.ask("DELETE", "/v1/jobs/first")[1]["was"] == "running"
        assert eventually(lambda: single.metric("sandbox_running_jobs") == 0)
        single.submit("first")  # the id is free again
        assert single.result("first")["verdicts"] == ["passed", "passed"]
        assert single.metric("sandbox_worker_restarts_total") == 0


def test_a_full_queue_pushes_back_and_says_when_to_come_again():
    with RunningService("--workers=1", "--queue=2", "--queue-per-owner=1") as small:
        held = {"code": ENDLESS, "limits": {"wall_s": 50.0}}
        small.submit("running", owner="a", **held)
        assert eventually(lambda: small.metric("sandbox_running_jobs") == 1)
        assert small.submit("a1", owner="a", **held)[0] == 202
        status, body, headers = small.submit("a2", owner="a", **held)
        assert (status, body["error"]) == (429, "a has 1 jobs queued, which is the limit")
        assert 1 <= int(headers["Retry-After"]) <= 30
        assert small.submit("b1", owner="b", **held)[0] == 202
        status, body, _ = small.submit("c1", owner="c", **held)
        assert (status, body["error"]) == (429, "the queue is full (2 jobs)")
        batch = [{"job_id": f"d{number}", "code": GOOD, "spec": SPEC} for number in range(3)]
        status, body, headers = small.ask("POST", "/v1/jobs", {"jobs": batch})
        assert (status, [job["status"] for job in body["jobs"]]) == (429, [429, 429, 429])
        assert "Retry-After" in headers
        _, text, _ = small.ask("GET", "/metrics")
        assert 'sandbox_rejected_total{reason="owner"} 1' in text
        assert 'sandbox_rejected_total{reason="queue"} 4' in text
        small.ask("DELETE", "/v1/jobs/a1")
        assert small.submit("c1", owner="c", **held)[0] == 202


def test_a_batch_larger_than_the_room_is_taken_in_part():
    with RunningService("--workers=1", "--queue=3") as small:
        jobs = [{"job_id": f"{n}", "code": ENDLESS, "spec": SPEC, "limits": {"wall_s": 50.0}} for n in range(6)]
        status, body, _ = small.ask("POST", "/v1/jobs", {"jobs": jobs})
        assert status == 202
        assert [job.get("status") for job in body["jobs"]] == [None] * 4 + [429] * 2


def test_memory_is_bounded_whatever_is_sent_and_never_fetched():
    with RunningService("--workers=1", "--memory-mb=4") as small:
        big = "#" * 200_000
        statuses = [small.submit(f"{n}", code=f"{big}\n{ENDLESS}", limits={"wall_s": 50.0})[0] for n in range(40)]
        assert set(statuses) == {202, 429}
        assert statuses.count(202) < 25
        # Numbers that are small as text and large as objects are kept as text.
        nested = {"entry_point": "f", "tests": [{"args": [], "expected": [[]] * 150_000}]}
        for n in range(8):
            small.ask("POST", "/v1/jobs", {"job_id": f"n{n}", "code": ENDLESS, "spec": nested})
        assert small.metric("sandbox_held_bytes") <= 4 * 2**20
        status = Path(f"/proc/{small.process.pid}/status").read_text()
        (resident,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
        assert resident < 150_000  # KiB


def test_results_and_jobs_nobody_asks_for_are_dropped_after_their_time():
    with RunningService("--workers=1", "--ttl-s=1") as forgetful:
        forgetful.submit("done")
        assert forgetful.result("done")["verdicts"] == ["passed", "passed"]
        forgetful.submit("endless", code=ENDLESS, limits={"wall_s": 50.0})
        forgetful.submit("queued", code=ENDLESS, limits={"wall_s": 50.0})
        assert eventually(lambda: forgetful.metric("sandbox_known_jobs") == 0)
        assert eventually(lambda: forgetful.metric("sandbox_running_jobs") == 0)
        assert forgetful.metric("sandbox_held_bytes") == 0
        forgetful.submit("wanted", code="import time\ndef f(x):\n    time.sleep(1)\n    return x + 1")
        assert eventually(lambda: forgetful.result("wanted", wait_s=0.4))["verdicts"] == ["passed", "passed"]


def test_a_client_that_hangs_up_takes_its_synchronous_job_with_it(service):
    connection = service.connect()
    body = json.dumps({"code": ENDLESS, "spec": SPEC, "limits": {"wall_s": 50.0}})
    connection.request("POST", "/v1/run", body)
    assert eventually(lambda: service.metric("sandbox_running_jobs") == 1)
    connection.close()
    assert eventually(lambda: service.metric("sandbox_running_jobs") == 0)


def test_a_token_is_asked_for_everywhere_but_at_the_probes():
    with RunningService(token="correct-horse") as guarded:
        assert guarded.submit("a")[0] == 202
        guarded.token = None
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "correct-horse"}):
            assert guarded.ask("GET", "/v1/jobs/a", headers=wrong)[0] == 401
            assert guarded.ask("POST", "/v1/jobs", {"code": GOOD, "spec": SPEC}, headers=wrong)[0] == 401
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert guarded.ask("GET", probe)[0] == 200


def test_a_token_may_come_from_a_file_and_an_empty_one_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    with RunningService(f"--token-file={file}") as guarded:
        assert guarded.submit("a")[0] == 401
        guarded.token = "from-a-file"
        assert guarded.submit("a")[0] == 202
    file.write_text("\n")
    command = [sys.executable, "-m", "sandbox", "serve", "--port=0", f"--token-file={file}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2
    assert "is empty" in ended.stderr


def test_a_sandbox_that_dies_is_replaced_and_its_job_gets_its_verdict(service):
    restarts = service.metric("sandbox_worker_restarts_total")
    code = "import time\ndef f(x):\n    time.sleep(0.5)\n    return x + 1"
    service.submit("survivor", code=code)
    assert eventually(lambda: service.metric("sandbox_running_jobs") == 1)
    for pid in zygotes(service):
        os.kill(pid, signal.SIGKILL)
    assert service.result("survivor")["verdicts"] == ["passed", "passed"]
    assert service.metric("sandbox_worker_restarts_total") > restarts
    assert service.ask("POST", "/v1/run", {"code": GOOD, "spec": SPEC})[1]["result"]["verdicts"] == ["passed"] * 2


def test_told_to_stop_it_finishes_what_runs_hands_it_over_and_refuses_the_rest():
    with RunningService("--workers=1") as ending:
        ending.submit("running", code="import time\ndef f(x):\n    time.sleep(0.5)\n    return x + 1")
        ending.submit("queued")
        assert eventually(lambda: ending.metric("sandbox_running_jobs") == 1)
        ending.process.send_signal(signal.SIGTERM)
        ending.event("draining")
        status, body, headers = ending.submit("late")
        assert (status, "shutting down" in body["error"], "Retry-After" in headers) == (503, True, True)
        assert ending.ask("GET", "/readyz")[0] == 503
        assert ending.ask("GET", "/healthz")[0] == 200
        _, body, _ = ending.ask("POST", "/v1/jobs/poll", {"ids": ["running", "queued"]})
        assert body["unknown"] == ["queued"]
        assert ending.result("running")["verdicts"] == ["passed", "passed"]
        assert ending.process.wait(20) == 0
        assert ending.event("stopped")


def test_told_to_stop_it_waits_for_running_jobs_only_so_long():
    with RunningService("--workers=1", "--drain-s=0.5") as ending:
        ending.submit("endless", code=ENDLESS, limits={"wall_s": 50.0})
        assert eventually(lambda: ending.metric("sandbox_running_jobs") == 1)
        started = time.monotonic()
        assert ending.stop() == 0
        assert time.monotonic() - started < 10


def test_killed_in_the_middle_it_leaves_no_process():
    with RunningService("--workers=2") as doomed:
        for name in ("a", "b"):
            doomed.submit(name, code=ENDLESS, limits={"wall_s": 50.0})
        assert eventually(lambda: doomed.metric("sandbox_running_jobs") == 2)
        assert eventually(lambda: len(zygotes(doomed)) == 2)
        started = zygotes(doomed)
        programs = [
            int(pid) for zygote in started for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        ]
        assert programs
        doomed.process.kill()
        doomed.process.wait()
        assert eventually(lambda: not any(map(alive, started + programs)))


def test_the_log_is_json_about_jobs_and_never_holds_code_tests_output_or_the_token():
    secrets = ["canary-code", "canary-input", "canary-expected", "canary-output", "canary-error", "canary-token"]
    with RunningService(token="canary-token") as talking:
        code = "import sys\nprint('canary-output')\nprint('canary-error', file=sys.stderr)\n"
        code += "def f(x): return 'canary-code'"
        spec = {"entry_point": "f", "tests": [{"args": ["canary-input"], "expected": "canary-expected"}]}
        talking.ask("POST", "/v1/run", {"job_id": "named", "owner": "me", "code": code, "spec": spec})
        talking.ask("POST", "/v1/run", {"code": "def f(x): raise ValueError('canary-error')", "spec": spec})
        talking.ask("POST", "/v1/run", {"code": ["canary-code"], "spec": spec})
        event = talking.event("job finished")
        talking.stop()
        talking.event("stopped")
    assert event == {"time": event["time"], "level": "info", "event": "job finished", "job_id": "named", "owner": "me",
                     "seconds": event["seconds"], "wrong": 1}  # fmt: skip
    text = "".join(talking.log)
    assert [secret for secret in secrets if secret in text] == []
    assert all(json.loads(line)["event"] for line in talking.log)


def test_metrics_are_prometheus_text_with_counts_by_verdict_and_latency(service):
    service.ask("POST", "/v1/run", {"code": "def f(x): return 2", "spec": SPEC})
    _, text, headers = service.ask("GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(samples['sandbox_tests_total{verdict="wrong"}']) >= 1
    assert float(samples["sandbox_workers"]) == 2
    buckets = [float(value) for name, value in samples.items() if name.startswith("sandbox_execution_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == float(samples["sandbox_execution_seconds_count"]) >= 1
    for name in ("sandbox_queue_jobs", "sandbox_running_jobs", "sandbox_worker_restarts_total"):
        assert f"# TYPE {name} " in text


def test_many_clients_at_once_each_get_their_own_result(service):
    answers = {}

    def work(number):
        spec = {"entry_point": "f", "tests": [{"args": [], "expected": number}]}
        job = {"code": f"def f(): return {number}", "spec": spec}
        answers[number] = service.ask("POST", "/v1/run", job)[1]["result"]["verdicts"]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: ["passed"] for number in range(24)}


def test_a_port_in_use_is_one_line(service):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "sandbox", "serve", f"--port={port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2
    assert "address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr
