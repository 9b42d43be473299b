import pytest
from rollout_server import TOKEN

PROMPT = [3, 14, 15, 9]


@pytest.fixture(scope="module")
def loaded(server, policies):
    """The digest of the policy that the server holds for this module."""
    digest = policies[0].digest
    while server.ask("POST", "/burnish/policy", {"policy": digest, "holder": "routes"})[0] == 202:
        pass
    yield digest
    server.ask("POST", "/burnish/release", {"holder": "routes"})


def complete(server, digest, **fields):
    return server.ask("POST", "/v1/completions", {"model": digest, "prompt": PROMPT, "max_tokens": 6, **fields})


def test_a_completion_says_which_policy_drew_it_in_tokens_with_their_logprobs(server, loaded):
    status, answer = complete(server, loaded, seed=5, logprobs=0)
    assert (status, answer["object"], answer["model"]) == (200, "text_completion", loaded)
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == answer["usage"]["completion_tokens"]
    assert choice["finish_reason"] in ("stop", "length")
    assert complete(server, loaded, seed=5, logprobs=0)[1]["choices"] == answer["choices"]


def test_the_choices_of_one_request_are_those_of_following_seeds(server, loaded):
    together = complete(server, loaded, seed=20, n=3, logprobs=0)[1]["choices"]
    apart = [complete(server, loaded, seed=20 + index, logprobs=0)[1]["choices"][0] for index in range(3)]
    assert [choice["index"] for choice in together] == [0, 1, 2]
    assert [choice["token_ids"] for choice in together] == [choice["token_ids"] for choice in apart]


def test_an_echo_scores_the_prompt_and_draws_nothing(server, loaded):
    answer = complete(server, loaded, echo=True, max_tokens=0, logprobs=0)[1]
    first, *scores = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert first is None
    assert len(scores) == 3
    assert all(score < 0 for score in scores)
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"presence_penalty": 0.5}, "presence_penalty: Extra inputs are not permitted"),
        ({"prompt": "3+4="}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [3, -1]}, "prompt.1"),
        ({"prompt": [3, 10**6]}, "token id 1000000 is not below the vocabulary's size"),
        ({"stream": True}, "stream"),
        ({"temperature": 0}, "temperature"),
        ({"max_tokens": 0}, "echo scores a prompt"),
        ({"max_tokens": 61}, "prompt and completion have 65 tokens; this server takes 64"),
        ({"model": "gpt"}, "model"),
    ],
)
def test_what_would_bias_the_trainer_or_break_the_engine_is_refused(server, loaded, fields, message):
    status, answer = complete(server, loaded, **fields)
    assert status == 400
    assert message in answer["error"]
    assert complete(server, loaded)[0] == 200


def test_a_policy_that_is_not_loaded_is_a_conflict(server, loaded, policies):
    status, answer = complete(server, policies[1].digest)
    assert status == 409
    assert answer["error"] == f"policy {policies[1].digest} is not loaded, but {loaded}"


@pytest.mark.parametrize("path", ["/v1/completions", "/burnish/policy", "/burnish/release", "/burnish/version"])
@pytest.mark.parametrize("token", [None, "other", f"{TOKEN}x"])
def test_without_the_token_nothing_is_told_or_done(server, loaded, path, token):
    method = "GET" if path.endswith("version") else "POST"
    assert server.ask(method, path, None if method == "GET" else {}, token=token)[0] == 401


def test_probes_and_metrics_need_no_token_and_show_none(server, loaded):
    complete(server, loaded)
    assert server.ask("GET", "/healthz", token=None) == (200, {"status": "alive"})
    assert server.ask("GET", "/readyz", token=None) == (200, {"status": "ready"})
    status, text = server.ask("GET", "/metrics", token=None)
    assert status == 200
    assert f'burnish_rollout_policy_info{{policy="{loaded}",version="0"}} 1' in text
    assert "burnish_rollout_ready 1" in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["burnish_rollout_tokens_total"]) > 0
    assert float(values['burnish_rollout_loads_total{outcome="loaded"}']) >= 1
    assert TOKEN not in text


def test_the_loaded_policy_and_its_holders_are_shown(server, loaded):
    assert server.ask("GET", "/v1/models")[1]["data"][0]["id"] == loaded
    state = server.ask("GET", "/burnish/version")[1]
    assert (state["state"], state["policy"], state["policy_version"]) == ("ready", loaded, 0)
    assert [holder["label"] for holder in state["holders"]] == ["routes"]


@pytest.mark.parametrize(
    "body", [{}, {"policy": "x", "holder": "h"}, {"policy": "a" * 64}, {"policy": "a" * 64, "holder": ""}, [1]]
)
def test_a_malformed_hold_is_refused(server, loaded, body):
    assert server.ask("POST", "/burnish/policy", body)[0] == 400


def test_an_unknown_path_is_not_found(server, loaded):
    assert server.ask("POST", "/collective_rpc", {})[0] == 404
