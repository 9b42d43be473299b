import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rollout_server import RolloutServer
from test_endpoint_engine import SAMPLING, drawn_in_process, engine_at

from burnish.contracts.errors import StageError
from burnish.contracts.sampling import EndpointConfig
from burnish.models.endpoint_engine import EndpointEngine
from burnish.models.engine import Request, Sampling


@pytest.mark.slow
@pytest.mark.usefixtures("token")
def test_a_server_killed_in_a_rollout_and_started_again_loses_nothing_and_doubles_nothing(shop, policies, folders):
    requests = [Request(f"{seed}", [3 + seed % 5, 14, 15], (1 << 62) + seed) for seed in range(300)]
    expected, _ = drawn_in_process(folders[1], requests)
    server = RolloutServer(shop)
    try:
        drawing = engine_at(server, policies[1]).generate(requests, SAMPLING)
        done = [next(drawing)]
        server.stop(signal.SIGKILL)
        server.start()
        done += drawing
        assert sorted(one.request_id for one in done) == sorted(expected)
        assert all(one.response_ids == expected[one.request_id].response_ids for one in done)
        assert "burnish_rollout_completions_total{" in server.ask("GET", "/metrics")[1]
    finally:
        server.stop()


def test_a_server_that_is_not_there_is_waited_for_and_then_named():
    settings = EndpointConfig(url="http://127.0.0.1:9", patience_s=0.5)
    with pytest.raises(
        StageError, match=r"r: rollout server http://127\.0\.0\.1:9: no answer .*without one completion"
    ):
        EndpointEngine(settings, policy="a" * 64, label="r", max_length=8)


class Scripted:
    """A server whose answers to completions are made by `answer(body, attempt)`."""

    def __init__(self, answer):
        outer = self
        self.attempts = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, said = 200, {"max_length": 64}
                if self.path == "/v1/completions":
                    outer.attempts.append(body)
                    status, said = answer(body, len(outer.attempts))
                text = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def engine(self):
        settings = EndpointConfig(url=f"http://127.0.0.1:{self.http.server_port}", concurrency=1, patience_s=20)
        return EndpointEngine(settings, policy="a" * 64, label="r", max_length=8)


def draw(scripted, count=1):
    requests = [Request(str(index), [1, 2], index) for index in range(count)]
    try:
        return list(scripted.engine().generate(requests, Sampling(1.0, 4)))
    finally:
        scripted.http.shutdown()


def answered(model, logprobs=(-0.5,)):
    choice = {"token_ids": [1], "logprobs": {"token_logprobs": list(logprobs)}, "finish_reason": "stop"}
    return 200, {"model": model, "choices": [choice]}


def test_an_answer_of_another_policy_fails_the_stage():
    with pytest.raises(StageError, match=f"answered with policy {'b' * 64} and not {'a' * 64}"):
        draw(Scripted(lambda body, attempt: answered("b" * 64)))


def test_a_failure_that_passes_is_asked_again_with_the_same_seed():
    scripted = Scripted(lambda body, attempt: answered("a" * 64) if attempt % 3 == 0 else (503, {"error": "later"}))
    assert [done.request_id for done in draw(scripted, 2)] == ["0", "1"]
    assert [body["seed"] for body in scripted.attempts] == [0, 0, 0, 1, 1, 1]


def test_what_is_no_rollout_server_is_said_at_once():
    with pytest.raises(StageError, match="answers 404: what answers is no rollout server"):
        draw(Scripted(lambda body, attempt: (404, b"<html>not here</html>")))


def test_a_missing_logprob_is_never_made_up():
    (done,) = draw(Scripted(lambda body, attempt: answered("a" * 64, [None])))
    assert done.logprobs[0] != done.logprobs[0]
