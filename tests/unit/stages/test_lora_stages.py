"""A run that trains an adapter: what moves, what is written, what is remembered."""

import hashlib
import json

import pytest
import torch
from rl_inputs import config_of, make_workplace, read_logprobs, read_rollouts
from safetensors.torch import load_file
from test_sft import demonstrations

from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt, Reward
from burnish.models.load import load_policy, load_trainable
from burnish.models.lora import adapter_parameters
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages import sft
from burnish.stages.trainer_state import build_optimizer
from burnish.stages.update import mini_batches
from burnish.stages.update_round import build_batch
from burnish.stages.update_step import PolicyTrainer

LORA = {"lora": {"rank": 4}}


@pytest.fixture
def work(tmp_path):
    return make_workplace(tmp_path)


def config(**fields):
    return config_of(model=LORA, preset="dapo", steps=2, weight_decay=0.01, **fields)


def digests(folder):
    """Of the base model's files; the probe is of the policy and changes with it."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file() and path.name != "probe.json"
    }


def adapter_of(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def next_round(work, settings, number):
    work.versions["updated_policy"] = {"policy_version": number - 1}
    return work.update(
        settings, round=number, renamed={"policy": "updated_policy", "trainer_state": "updated_trainer_state"}
    )


def test_an_update_writes_the_same_base_files_and_a_new_adapter(work):
    work.logprob(config())
    result = work.update(config())
    updated = work.path / "updated_policy"
    assert digests(updated) == digests(work.path / "policy")
    assert any(tensor.any() for name, tensor in adapter_of(updated).items() if "lora_B" in name)
    assert result.series[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    moments = load_file(work.path / "updated_trainer_state" / "optimizer.safetensors")
    assert len(moments) == 3 * len(adapter_of(updated))
    assert all(".lora_A." in name or ".lora_B." in name for name in moments)
    # The next round goes on from it, and still leaves the base alone.
    before = adapter_of(updated)
    next_round(work, config(), 2)
    assert digests(updated) == digests(work.path / "policy")
    assert any(not torch.equal(tensor, before[name]) for name, tensor in adapter_of(updated).items())


def test_at_learning_rate_zero_an_adapters_ratios_are_one(work):
    """The trainer's own logprobs are those of the adapter beside the weights, not of a merged copy."""
    work.logprob(config())
    work.update(config(learning_rate=0.1))
    work.logprob(config(), renamed={"policy": "updated_policy"})
    result = next_round(work, config(learning_rate=0.0), 2)
    for row in result.series:
        assert row["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert row["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert row["clip_fraction"] == 0.0


def test_two_rounds_through_artifacts_equal_two_rounds_in_memory_bit_by_bit(work):
    settings = config()
    work.logprob(settings)
    first = work.update(settings)
    seeds = [work.seeds[1]]
    second = next_round(work, settings, 2)
    seeds.append(work.seeds[2])

    model = load_trainable(work.path / "policy", settings.model, device="cpu", seed=seeds[0]).model
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    optimizer = build_optimizer(model, betas=settings.update.betas, weight_decay=settings.update.weight_decay)
    trainer = PolicyTrainer(policy, optimizer, settings.update, completion_limit=8)
    rewards = [Reward(row.sample_id, {}, float(row.sample_id[-1])) for row in read_rollouts(work)]
    batch, _ = build_batch(read_rollouts(work), rewards, read_logprobs(work), settings.update)
    rates = iter([row["lr"] for row in first.series + second.series])
    for seed in seeds:
        for rows in mini_batches(batch, steps=2, epochs=1, seed=seed):
            trainer.step(batch, rows, rate=next(rates))
    found = adapter_of(work.path / "updated_policy")
    for name, parameter in adapter_parameters(model).items():
        assert torch.equal(found[name], parameter), name


def test_the_cold_start_trains_an_adapter_that_the_update_takes_up_and_that_is_the_reference(tmp_path):
    work = make_workplace(tmp_path)
    write_records(work.folder("prompts") / "prompts.parquet", demonstrations(), Prompt)
    start = parse_config(
        {
            "model": {"path": "char", "layers": 1, "width": 32, **LORA},
            "sft": {"epochs": 3, "learning_rate": 1e-2, "batch_size": 8},
            "runtime": {"threads": 1, "device": "cpu"},
        }
    )
    result = work.run(sft, "sft", start, round=None)
    assert result.series[-1]["loss"] < result.series[0]["loss"]
    cold = adapter_of(work.path / "policy")
    (work.path / "reference").rename(work.path / "old reference")
    (work.path / "reference").symlink_to(work.path / "policy", target_is_directory=True)
    with_reference = config(kl={"coef": 0.1})
    # A policy is its own reference in the first round: the KL is 0, adapter and all.
    assert work.logprob(with_reference).metrics["kl_ref"] == pytest.approx(0.0, abs=1e-7)
    work.update(with_reference)
    updated = adapter_of(work.path / "updated_policy")
    assert updated.keys() == cold.keys()
    metrics = work.logprob(with_reference, renamed={"policy": "updated_policy"}).metrics
    assert metrics["kl_ref"] > 1e-6


def test_an_update_with_another_rank_than_the_policys_adapter_is_refused(work):
    work.logprob(config())
    work.update(config())
    other = config_of(model={"lora": {"rank": 8}}, preset="dapo")
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is 8, but the policy's adapter has 4"):
        next_round(work, other, 2)


def test_the_probe_lies_in_the_policy_with_the_logprobs_before_and_after(work):
    work.logprob(config())
    work.update(config())
    (first, *rest) = json.loads((work.path / "updated_policy" / "probe.json").read_text())["samples"]
    assert len(rest) == 3
    model = load_policy(work.path / "updated_policy").model
    ids = torch.tensor([first["input_ids"] + first["response_ids"]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(first["input_ids"]) - 1 : -1].log_softmax(-1)
    expected = logits.gather(1, torch.tensor(first["response_ids"])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(first["logprobs"]), expected, atol=1e-5, rtol=0)
    assert first["previous"] != first["logprobs"]
