"""Two processes against one. A launch costs two imports of torch, so each answers several questions."""

import os
import signal
import threading
import time
import types
from pathlib import Path

import pytest
import torch
from rl_inputs import Workplace, config_of, make_workplace
from safetensors.torch import load_file
from test_sft import demonstrations

from burnish.contracts.config import RuntimeConfig
from burnish.contracts.errors import ConfigError, StageError
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt
from burnish.stages import ranks, sft


def in_processes(count, config):
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"processes": count})})


def cold_start(path, processes, rows=None, **values):
    place = Workplace(path)
    write_records(place.folder("prompts") / "prompts.parquet", rows or demonstrations(), Prompt)
    config = parse_config(
        {
            "model": {"path": "char", "layers": 2, "width": 32},
            # Batches and budgets such that ranks have different numbers of micro-batches.
            "sft": {"epochs": 2, "learning_rate": 3e-3, "batch_size": 7, "token_budget": 32, **values},
            "runtime": {"threads": 1, "device": "cpu", "processes": processes},
        }
    )
    return place, place.run(sft, "sft", config, round=None)


def second_update(path, processes, **fields):
    """Goes on from moments, adapter and critic that one process left; ranks get unequal stretches of four groups."""
    work = make_workplace(path)
    config = config_of(steps=2, token_budget=32, **fields)
    work.logprob(config)
    work.update(config)
    updated = {name: f"updated_{name}" for name in ("policy", "trainer_state", "critic", "verdict")}
    work.logprob(config, round=2, renamed={name: updated[name] for name in ("policy", "critic")})
    return work, work.update(in_processes(processes, config), round=2, renamed=updated)


def assert_same_run(one, two):
    assert [list(row) for row in two.series] == [list(row) for row in one.series]
    for row, other in zip(one.series, two.series, strict=True):
        assert_same_figures(row, other)
    timed = {"seconds", "tokens_per_second"}
    assert_same_figures(*({k: v for k, v in each.metrics.items() if k not in timed} for each in (one, two)))
    assert (two.metadata, two.counts, two.reused) == (one.metadata, one.counts, one.reused)


# What positive and negative samples are of the gradient is measured in one process only.
ONE_PROCESS_ONLY = {"grad_norm_positive", "grad_norm_negative", "negative_gradient_share"}


def assert_same_figures(one, two):
    assert two.keys() == one.keys()
    for name, value in one.items():
        if name in ONE_PROCESS_ONLY:
            continue
        assert (two[name] is None) == (value is None), name
        if value is not None:
            assert two[name] == pytest.approx(value, rel=1e-3, abs=2e-5), name


def assert_same_tensors(one, two):
    """Same files, names and shapes; values within what adding up in another order leaves."""
    files = {str(path.relative_to(one)) for path in one.rglob("*.safetensors")}
    assert files == {str(path.relative_to(two)) for path in two.rglob("*.safetensors")}
    for file in files:
        tensors, others = load_file(one / file), load_file(two / file)
        assert list(others) == list(tensors)
        assert (one / file).stat().st_size == (two / file).stat().st_size
        for name, tensor in tensors.items():
            # The square of a gradient is small; its own size is what counts.
            atol = 1e-5 + 1e-4 * float(tensor.abs().max())
            torch.testing.assert_close(others[name], tensor, atol=atol, rtol=1e-3, msg=name)
    return files


def test_two_processes_do_the_cold_start_of_one(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    (place, one), (other, two) = (cold_start(tmp_path / str(count), count) for count in (1, 2))
    assert_same_run(one, two)
    assert assert_same_tensors(place.path / "policy", other.path / "policy") == {"model.safetensors"}
    assert {path.name for path in (other.path / "policy").iterdir()} == {
        path.name for path in (place.path / "policy").iterdir()
    }
    # The stage's own process is as it was.
    assert not torch.distributed.is_initialized()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert os.environ == environment


def test_two_processes_do_the_update_of_one_with_critic_and_adapter(tmp_path):
    """All weights of the critic and an adapter on the policy are spread; the clipped norm is over all of them."""
    fields = {
        "preset": "ppo",
        "learning_rate": 1e-3,
        "max_grad_norm": 0.05,
        "kl": {"coef": 0.05},
        "model": {"lora": {"rank": 4}},
    }
    (work, one), (other, two) = (second_update(tmp_path / str(count), count, **fields) for count in (1, 2))
    assert_same_run(one, two)
    for name in ("updated_policy", "updated_trainer_state", "updated_critic"):
        assert assert_same_tensors(work.path / name, other.path / name)
    base = work.path / "policy" / "model.safetensors"
    assert (other.path / "updated_policy" / "model.safetensors").read_bytes() == base.read_bytes()


def test_an_error_of_the_ranks_is_the_stages_own(tmp_path):
    long = [Prompt("long", "sums", "sft", None, "1+1=" * 20, {}, "2")]
    with pytest.raises(ConfigError, match=r"^sft\.max_length is 16: every demonstration is longer; raise it$"):
        cold_start(tmp_path, 2, long, max_length=16)
    assert not list((tmp_path / "work").glob("*/out/policy/*"))


def test_a_killed_rank_ends_all_and_nothing_is_written(tmp_path):
    killed: list[int] = []
    before = set(children())  # servers of other tests

    def kill_rank_1():
        while not killed:
            for pid in children():
                if b"RANK=1" in environment_of(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.02)

    threading.Thread(target=kill_rank_1, daemon=True).start()
    with pytest.raises(StageError, match="sft: rank 1 was killed by SIGKILL, so all ranks were stopped"):
        cold_start(tmp_path, 2)
    assert not set(children()) - before
    assert not list((tmp_path / "work").glob("*/out/policy/*"))


class Odd(StageError):
    """A stage's own kind of error, made of something else than a line."""

    def __init__(self, value):
        super().__init__(f"the loss is {value}")


def told(workdir, errors, exit_codes):
    context = types.SimpleNamespace(workdir=workdir, title="round 1 - update")
    for rank, error in errors:
        ranks._report(workdir, rank, error)
    failures = {rank: types.SimpleNamespace(exitcode=code) for rank, code in exit_codes.items()}
    return ranks._failure(context, failures)


def test_what_a_rank_explained_is_told_before_what_followed_from_it(tmp_path):
    found = told(tmp_path, [(0, RuntimeError("connection closed by peer")), (1, Odd(3.5))], {0: 1, 1: 5})
    assert type(found) is StageError
    assert str(found) == "the loss is 3.5"


def test_a_killed_rank_is_told_before_the_others_complaints(tmp_path):
    found = told(tmp_path, [(0, RuntimeError("connection\nclosed"))], {0: 1, 1: -9, 2: -15})
    assert str(found).startswith("round 1 - update: rank 1 was killed by SIGKILL")


def test_an_unexpected_error_is_one_line_with_its_rank(tmp_path):
    found = told(tmp_path, [(1, ValueError("two\nlines"))], {0: -15, 1: 1})
    assert str(found) == "round 1 - update: rank 1 failed: ValueError: two lines"


def test_ranks_that_end_without_a_word_are_told_by_their_exit_codes(tmp_path):
    assert str(told(tmp_path, [], {1: 3})).endswith("ranks ended before they were done, with exit codes {1: 3}")


def children():
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def test_the_number_of_processes_is_one_without_a_gpu_and_one_a_gpu_with_them(monkeypatch):
    assert ranks.count_processes(RuntimeConfig(device="cpu")) == 1
    assert ranks.count_processes(RuntimeConfig(device="cpu", processes=3)) == 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert ranks.count_processes(RuntimeConfig()) == 4
    assert ranks.count_processes(RuntimeConfig(processes=2)) == 2
    with pytest.raises(ConfigError, match=r"runtime\.processes is 8: torch sees 4 GPUs here"):
        ranks.count_processes(RuntimeConfig(processes=8))
