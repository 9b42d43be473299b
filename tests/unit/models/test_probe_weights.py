import json

import pytest
import torch
from test_lora import model_config

from burnish.contracts.errors import ContractError, StageError
from burnish.models.hf_engine import HfEngine
from burnish.models.load import load_policy, load_trainable
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.models.probe_weights import PROBE_FILE, check_weights, choose_probe, read_probe
from burnish.stages.sft_batches import Example

EXAMPLES = [Example([3 + i, 14, 15, 9], [26, 5, 35 + i, 1]) for i in range(6)]


def move(model, amount):
    """Change the trainable weights as an update would, by `amount`."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += amount * torch.randn(parameter.shape, generator=generator)


def train(source, out, amount, rank=0):
    model, tokenizer, _ = load_trainable(source, model_config(rank=rank), device="cpu", seed=0)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.take_probe(EXAMPLES)
    move(model, amount)
    policy.save(out, tokenizer, source=source, trust_remote_code=False)


def engine_of(folder, **options):
    policy = load_policy(folder, **options)
    return HfEngine(policy.model, policy.eos_token_ids, batch_size=4)


def check(engine, folder, tolerance=None):
    return check_weights(engine, read_probe(folder), dtype="float32", tolerance=tolerance, title="round 1 - rollout")


def test_an_engine_with_the_policys_weights_passes(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 0.1)
    assert check(engine_of(tmp_path / "policy"), tmp_path / "policy") < 1e-5


def test_an_engine_that_kept_the_old_weights_is_caught_with_both_figures_named(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 0.1)
    with pytest.raises(StageError, match=r"off by \d\.\d{4} on average, more than rollout\.probe_tolerance 0\.05"):
        check(engine_of(char_folder), tmp_path / "policy")


def test_old_weights_are_caught_when_an_update_moved_them_by_less_than_the_tolerance(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 1e-3)
    fresh = check(engine_of(tmp_path / "policy"), tmp_path / "policy")
    assert fresh < 1e-5
    with pytest.raises(StageError, match="still runs the old weights"):
        check(engine_of(char_folder), tmp_path / "policy")


def test_weights_that_did_not_move_are_neither_old_nor_new(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 0.0)
    assert check(engine_of(char_folder), tmp_path / "policy") < 1e-5


def test_a_dropped_adapter_is_caught(char_folder, tmp_path):
    train(char_folder, tmp_path / "first", 0.1, rank=4)
    train(tmp_path / "first", tmp_path / "policy", 0.1, rank=4)
    for merge in (True, False):
        assert check(engine_of(tmp_path / "policy", merge=merge), tmp_path / "policy") < 1e-5
    with pytest.raises(StageError, match="does not run the weights it was given"):
        check(engine_of(char_folder), tmp_path / "policy")


def test_without_a_probe_or_with_tolerance_0_nothing_is_checked(char_folder, tmp_path):
    assert check(engine_of(char_folder), char_folder) is None
    train(char_folder, tmp_path / "policy", 0.1)
    assert check(engine_of(char_folder), tmp_path / "policy", tolerance=0.0) is None


def test_logprobs_that_are_not_numbers_never_pass(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 0.1)
    engine = engine_of(tmp_path / "policy")
    engine.score = lambda input_ids, response_ids: [float("nan")] * len(response_ids)
    with pytest.raises(StageError, match="off by nan"):
        check(engine, tmp_path / "policy")


def test_a_policy_saved_without_a_probe_does_not_keep_that_of_the_base_it_copies(char_folder, tmp_path):
    train(char_folder, tmp_path / "first", 0.1, rank=4)
    model, tokenizer, _ = load_trainable(tmp_path / "first", model_config(), device="cpu", seed=0)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.save(tmp_path / "second", tokenizer, source=tmp_path / "first", trust_remote_code=False)
    assert read_probe(tmp_path / "first")
    assert not read_probe(tmp_path / "second")


def test_a_probe_is_small_whatever_it_is_chosen_from():
    long = [Example([3] * 600, [5]), Example([3] * 5, list(range(3, 90))), *EXAMPLES]
    chosen = choose_probe(long)
    assert len(chosen) == 4
    assert all(len(sample.input_ids) <= 512 and len(sample.response_ids) <= 32 for sample in chosen)
    assert choose_probe([]) == []


def test_a_broken_probe_is_one_clear_error(char_folder, tmp_path):
    train(char_folder, tmp_path / "policy", 0.1)
    path = tmp_path / "policy" / PROBE_FILE
    tree = json.loads(path.read_text())
    tree["samples"][0]["logprobs"].pop()
    path.write_text(json.dumps(tree))
    with pytest.raises(ContractError, match=r"policy: probe\.json: .*not of the same length"):
        read_probe(tmp_path / "policy")
