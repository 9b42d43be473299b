import json

from hypothesis import given
from hypothesis import strategies as st

from burnish.contracts.config import RunConfig
from burnish.contracts.records import Execution, Logprob, Reward, Rollout
from burnish.report import browser
from burnish.report.browser import browser_data, embed_json
from burnish.report.run import RunView, Sample, SampleSet, sample_stats

TEXTS = {index: bytes([97 + index % 26]) for index in range(1000)}


def sample(length: int = 3) -> Sample:
    rollout = Rollout(
        "s", "s", 0, "g", "p", "sums", 4, [1], list(range(length)), [1] * (length - 1) + [0], [-1.0] * length, "length",
        1.0, 1.0, 0, 0, "processed", "a prompt", "abc",
    )  # fmt: skip
    return Sample(
        rollout,
        Reward("s", {"exact": 1.0, "math": None}, 1.0, ["truncated"]),
        Execution("s", ["passed", "timeout"], ["", "no end within 5 s"]),
        Logprob("s", [-0.5] * length, None, [0.1] * length),
    )


def view(samples: list[Sample], texts=TEXTS) -> RunView:
    found = SampleSet("round 1", 1, sample_stats(samples), samples)
    return RunView("r", RunConfig(), [], sample_sets=[found], token_texts=texts)


@given(st.recursive(st.text() | st.none() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_embedded_json_has_no_angle_bracket_and_reads_back(value):
    text = embed_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == json.loads(json.dumps(value).encode("utf-8", "replace"))


def test_an_item_says_what_every_stage_said():
    data = browser_data(view([sample()]))
    item = data["items"][0]
    assert data["prompts"] == ["a prompt"]
    assert data["sets"] == [{"title": "round 1", "round": 1, "samples": 1}]
    assert item["tokens"] == ["a", "b", "c"]
    assert item["shift"] == [50, 50, None]
    assert item["components"] == {"exact": 1.0, "math": None}
    assert item["verdicts"] == ["passed", "timeout"]
    assert item["details"] == ["", "no end within 5 s"]
    assert (item["reward"], item["policy"], item["finish"], item["length"]) == (1.0, 4, "length", 3)


def test_a_long_response_keeps_its_head_and_its_tail(monkeypatch):
    monkeypatch.setattr(browser, "TOKENS_IN_PAGE", 100)
    item = browser_data(view([sample(900)]))["items"][0]
    assert len(item["tokens"]) == len(item["shift"]) == 100
    assert item["gap"] == 50
    assert item["tokens"][:2] == ["a", "b"]
    assert item["tokens"][-1] == chr(97 + 899 % 26)
    assert item["shift"][-1] is None


def test_without_a_tokenizer_the_text_is_shown_uncoloured():
    item = browser_data(view([sample()], texts=None))["items"][0]
    assert item["text"] == "abc"
    assert "tokens" not in item
    assert "shift" not in item


def test_a_sample_nobody_scored_has_no_reward_rather_than_zero():
    bare = Sample(sample().rollout)
    item = browser_data(view([bare]))["items"][0]
    assert item["reward"] is None
    assert "components" not in item
