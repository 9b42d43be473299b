import os
import threading
import time
from pathlib import Path

import pytest
from samples import prompt, rollout

from burnish.contracts.config import RewardConfig, ScorerConfig, TaskConfig
from burnish.rewards.score import score
from burnish.rewards.worker import VerifierWorker
from burnish.tasks import load_task

# Backtracks for ages.
HANGS = {"pattern": "(a+)+$", "text": "a" * 60 + "b"}


def children() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def worker():
    with VerifierWorker(5.0) as started:
        yield started


@pytest.mark.parametrize(
    ("answer", "response", "expected"),
    [
        ("42", "so \\boxed{42}", 1.0), ("\\frac{1}{2}", "The answer is $0.5$", 1.0), ("1/2", "$\\frac{2}{4}$", 1.0),
        ("x+1", "$1+x$", 1.0), ("42", "\\boxed{41}", 0.0), ("42", "no idea", 0.0), ("42", "", 0.0),
    ],
)  # fmt: skip
def test_math_means_equivalence(worker, answer, response, expected):
    assert worker.call("math", answer=answer, response=response) == expected


def test_math_works_from_threads(worker):
    scores = []
    threads = [
        threading.Thread(target=lambda: scores.append(worker.call("math", answer="7", response="$7$")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [1.0] * 4


def test_a_call_that_hangs_is_missing_and_the_next_one_works():
    with VerifierWorker(0.5) as worker:
        started = time.monotonic()
        assert worker.call("regex", **HANGS) is None
        assert time.monotonic() - started < 20
        assert worker.failures == 1
        assert worker.call("regex", pattern="a", text="a") == 1.0


def test_a_worker_that_is_killed_loses_one_call_at_most():
    with VerifierWorker(5.0) as worker:
        assert worker.call("regex", pattern="a", text="a") == 1.0
        worker._process.kill()
        worker._process.wait()
        assert worker.call("regex", pattern="a", text="a") is None
        assert worker.call("regex", pattern="a", text="b") == 0.0


def test_what_a_verifier_trips_over_is_missing_not_zero(worker):
    assert worker.call("reasoning_gym", dataset="nope", params={}, seed=0, size=1, index=0, answer="1") is None
    assert worker.call("math", answer="", response="$1$") is None


def test_large_texts_go_through(worker):
    assert worker.call("regex", pattern="end$", text="x" * 2_000_000 + "end") == 1.0


def test_two_hundred_calls_with_hangs_between_leave_one_process_and_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    running = len(children())
    with VerifierWorker(0.2) as worker:
        for number in range(200):
            if number % 50 == 49:
                worker.call("regex", **HANGS)
            else:
                worker.call("regex", pattern="a", text="a")
            assert len(children()) <= running + 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(children()) == running


def test_the_worker_has_none_of_our_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with VerifierWorker(5.0) as worker:
        worker.call("regex", pattern="a", text="a")
        environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
    assert b"SECRET" not in environment


def test_reasoning_gym_scores_its_own_answers_and_not_others():
    config = TaskConfig(
        source="reasoning_gym:chain_sum", params={"max_terms": 2}, train_size=1, eval_size=0, sft_size=3
    )
    rows = [row for row in load_task(config, 3) if row.split == "sft"]
    prompts = {row.prompt_id: row for row in rows}
    rollouts = [rollout(f"It is = {row.demonstration}", f"right-{n}", row.prompt_id) for n, row in enumerate(rows)]
    rollouts += [rollout("I do not know", f"wrong-{n}", row.prompt_id) for n, row in enumerate(rows)]
    scorers = [ScorerConfig(name="reasoning_gym")]
    rewards = {row.sample_id: row.reward for row in score(rollouts, {}, prompts, RewardConfig(scorers=scorers), 8)}
    assert all(value == (1.0 if name.startswith("right") else 0.0) for name, value in rewards.items())
    assert len(rewards) == 6


def test_a_regex_in_format_is_tried_in_the_worker_and_a_timeout_is_missing():
    scorers = [ScorerConfig(name="format", params={"regex": HANGS["pattern"]})]
    config = RewardConfig(scorers=scorers, verifier_timeout_s=0.5)
    rows = list(score([rollout(HANGS["text"])], {}, {"p": prompt(kind="exact", answer="1")}, config, 8))
    assert rows[0].components == {"format": None}
    assert rows[0].reward is None
