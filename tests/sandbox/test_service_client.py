"""The client against real services: restarts, cut connections, full queues, wrong tokens; every result exactly once."""

import random
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from running_service import RunningService

from burnish.contracts.errors import StageError
from burnish.contracts.execution import ExecuteConfig
from burnish.contracts.records import Prompt, Rollout
from burnish.rewards.backends import open_backend
from burnish.rewards.backends.service import ServiceBackend
from burnish.rewards.execution import execute_rollouts
from sandbox.jobs import Job

SPEC = {"kind": "code", "entry_point": "f", "tests": [{"args": [n], "expected": n + 1} for n in (1, 2)]}
PROMPTS = {"p": Prompt("p", "code", "train", None, "Write f.", SPEC)}


def job(number, pause=0.0):
    """Even ones pass."""
    wrong = "" if number % 2 == 0 else " + 1"
    return Job(f"j{number}", f"import time\ndef f(x):\n    time.sleep({pause})\n    return x + 1{wrong}", SPEC, "me")


def expected(number):
    return ("passed", "passed") if number % 2 == 0 else ("wrong", "wrong")


def rollout(number, pause=0.0):
    return Rollout(
        sample_id=f"s{number}", episode_id="e", turn=0, group_id="g", prompt_id="p", task="code", policy_version=0,
        input_ids=[1], response_ids=[1], loss_mask=[1], rollout_logprobs=[0.0], finish_reason="stop", temperature=1.0,
        top_p=1.0, top_k=0, seed=0, logprobs_mode="processed", prompt_text="Write f.", text=job(number, pause).code,
    )  # fmt: skip


@contextmanager
def client(url, token=None, lanes=2, **settings):
    backend = ServiceBackend(url, token, lanes, **settings)
    try:
        yield backend
    finally:
        backend.close()


def run_all(backend, count, pause=0.0, meanwhile=lambda done: None):
    """Everything the backend hands out for `count` jobs, as pairs."""
    found, following = [], 0
    while len(found) < count:
        while following < count and following - len(found) < backend.capacity:
            backend.submit(job(following, pause))
            following += 1
        found += backend.collect()
        meanwhile(len(found))
    return found


def check(found, count):
    assert len(found) == count
    assert {job_id: result.verdicts for job_id, result in found} == {f"j{n}": expected(n) for n in range(count)}


def test_every_job_gets_its_result_and_the_service_is_left_empty():
    with RunningService() as service:
        with client(service.url) as backend:
            check(run_all(backend, 200), 200)
            assert backend.resubmitted == 0
        assert service.metric("sandbox_execution_seconds_count") == 200
        assert service.metric("sandbox_known_jobs") == 0


@pytest.mark.parametrize("gently", [False, True])
def test_a_service_that_is_restarted_in_the_middle_costs_nothing_but_time(gently):
    services = [RunningService("--workers=2")]
    port = services[0].port

    def restart(done):
        if done >= 40 and len(services) == 1:
            services[0].stop() if gently else services[0].process.kill()
            services[0].process.wait()
            services.append(RunningService("--workers=2", port=port))

    try:
        with client(services[0].url) as backend:
            check(run_all(backend, 150, pause=0.005, meanwhile=restart), 150)
            assert backend.resubmitted > 0
        assert len(services) == 2
        # What the first service had finished and handed over is not run again by the second.
        assert services[1].metric("sandbox_execution_seconds_count") <= 150 - 40
    finally:
        for service in services:
            service.process.kill()
            service.process.wait()


def test_executions_of_rollouts_are_the_same_through_a_pool_and_through_a_service_that_dies_in_the_middle():
    def verdicts(config, meanwhile=lambda row: None):
        rows = []
        for row in execute_rollouts((rollout(n, 0.005) for n in range(100)), PROMPTS, config):
            rows.append((row.sample_id, row.verdicts))
            meanwhile(len(rows))
        return rows

    services = [RunningService()]
    port = services[0].port

    def die(done):
        if done == 20:
            services[0].process.kill()
            services[0].process.wait()
            services.append(RunningService(port=port))

    try:
        config = ExecuteConfig(backend="service", service_url=services[0].url, workers=1)
        through_service = verdicts(config, die)
    finally:
        for service in services:
            service.process.kill()
            service.process.wait()
    assert through_service == verdicts(ExecuteConfig())
    assert through_service == [(f"s{n}", list(expected(n))) for n in range(100)]


class CuttingProxy:
    """Passes bytes on and cuts each connection after a random number of them."""

    def __init__(self, port):
        self._target = port
        self._random = random.Random(0)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self._server.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            budget = [self._random.randrange(2_000, 60_000)]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink, budget), daemon=True).start()

    def _pass_on(self, source, sink, budget):
        try:
            while data := source.recv(1024):
                budget[0] -= len(data)
                if budget[0] < 0:
                    self.cuts += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._server.close()


def test_connections_cut_at_any_byte_lose_no_job_and_run_none_twice():
    with RunningService() as service:
        proxy = CuttingProxy(service.port)
        with client(proxy.url) as backend:
            check(run_all(backend, 200), 200)
        proxy.close()
        assert proxy.cuts >= 3
        assert service.metric("sandbox_execution_seconds_count") == 200


def test_a_queue_that_is_too_short_only_slows_it_down():
    with RunningService("--queue=3", "--workers=1") as small, client(small.url) as backend:
        check(run_all(backend, 60), 60)
        assert small.metric("sandbox_execution_seconds_count") == 60
        _, text, _ = small.ask("GET", "/metrics")
        assert 'sandbox_rejected_total{reason="queue"}' in text


def test_the_token_is_taken_from_the_environment_and_a_wrong_one_is_one_line(monkeypatch):
    with RunningService(token="right") as guarded:
        config = ExecuteConfig(backend="service", service_url=guarded.url)
        monkeypatch.delenv("BURNISH_SANDBOX_TOKEN", raising=False)
        with pytest.raises(StageError, match="wants another token; set BURNISH_SANDBOX_TOKEN"):
            open_backend(config)
        monkeypatch.setenv("BURNISH_SANDBOX_TOKEN", "wrong")
        with pytest.raises(StageError, match="wants another token"):
            open_backend(config)
        monkeypatch.setenv("BURNISH_SANDBOX_TOKEN", "right")
        backend = open_backend(config)
        check(run_all(backend, 4), 4)
        backend.close()


def test_a_service_that_stays_away_fails_the_stage_with_its_address_and_a_way_out():
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with client(url, patience_s=0.5) as backend:
        backend.submit(job(0))
        with pytest.raises(StageError, match=f"{url}.*no answer.*execute.backend=pool"):
            backend.collect()


def test_something_else_that_answers_is_said_to_be_no_sandbox_service():
    def answer():
        connection = server.accept()[0]
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(StageError, match="answers 404: what answers is no sandbox service"):
            ServiceBackend(f"http://127.0.0.1:{server.getsockname()[1]}", None, 1)


def test_a_client_that_stops_early_takes_its_jobs_with_it():
    with RunningService("--workers=1") as service:
        with client(service.url, lanes=1) as backend:
            for number in range(20):
                backend.submit(job(number, pause=0.2))
            backend.collect()
        deadline = time.monotonic() + 5
        while service.metric("sandbox_known_jobs") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.metric("sandbox_known_jobs") == 0
        assert service.metric("sandbox_execution_seconds_count") < 20


@pytest.mark.parametrize(("backend", "url"), [("service", ""), ("pool", "http://sandbox:8000")])
def test_an_address_is_given_for_the_service_and_for_nothing_else(backend, url):
    with pytest.raises(ValueError, match="backend=service needs an address"):
        ExecuteConfig(backend=backend, service_url=url)


def test_an_address_has_a_scheme():
    with pytest.raises(ValueError, match="service_url is 'sandbox:8000'; it must be like http://burnish-sandbox:8000"):
        ExecuteConfig(backend="service", service_url="sandbox:8000")
