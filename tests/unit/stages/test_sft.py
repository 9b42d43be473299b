import json
import math

import pytest
import torch
from rl_inputs import Workplace

from burnish.contracts.config import SftConfig
from burnish.contracts.errors import ConfigError, StageError
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.models.char import char_tokenizer, make_char_model
from burnish.models.load import load_policy
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages import sft
from burnish.stages.sft_batches import Example, Examples, build_examples, epoch_steps
from burnish.stages.sft_training import Training

EOS = frozenset({1})


def demonstrations(count=24, split="sft", task="sums"):
    return [
        Prompt(f"{task}-{split}-{i:02d}", task, split, None, f"{i % 10}+{i // 10}=", {}, str(i % 10 + i // 10))
        for i in range(count)
    ]


def config(**values):
    values = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 8, "validation_fraction": 0.25, **values}
    return parse_config(
        {
            "model": {"path": "char", "layers": 1, "width": 32},
            "sft": values,
            "runtime": {"threads": 1, "device": "cpu"},
        }
    )


@pytest.fixture
def place(tmp_path):
    place = Workplace(tmp_path)
    write_records(place.folder("prompts") / "prompts.parquet", [*demonstrations(), *demonstrations(9, "train")], Prompt)
    return place


def training_of(model, settings, examples):
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    return Training(policy, settings, examples, seed=0)


def weights(place):
    return (place.path / "policy" / "model.safetensors").read_bytes()


def test_training_lowers_the_loss_and_writes_version_0_and_step_0(place):
    result = place.run(sft, "sft", config(epochs=10), round=None)
    assert result.metadata["policy"] == {"policy_version": 0}
    assert result.metadata["trainer_state"] == {"step": 0}
    assert result.metadata["verdict"]["status"] == "ok"
    assert Verdict.from_json((place.path / "verdict" / VERDICT_FILE).read_bytes(), "verdict") == Verdict()
    assert list((place.path / "critic").iterdir()) == []
    assert json.loads((place.path / "trainer_state" / "state.json").read_text()) == {"step": 0}
    assert result.metrics["demonstrations"] == 18
    assert result.metrics["validation_demonstrations"] == 6
    assert [row["step"] for row in result.series] == list(range(1, len(result.series) + 1))
    assert result.series[-1]["loss"] < 0.7 * result.series[0]["loss"]
    assert all(row.keys() == {"step", "loss", "lr", "grad_norm", "val_loss"} for row in result.series)
    assert [row["step"] for row in result.series if row["val_loss"] is not None] == [
        3,
        6,
        9,
        12,
        15,
        18,
        21,
        24,
        27,
        30,
    ]
    model, _, eos = load_policy(place.path / "policy")
    assert model.dtype == torch.float32
    assert eos == {1}


def test_the_same_seed_gives_the_same_bytes(place):
    place.run(sft, "sft", config(), round=None)
    first = weights(place)
    place.run(sft, "sft", config(), round=None)
    assert weights(place) == first


@pytest.mark.parametrize("reason", ["off", "none"])
def test_without_demonstrations_the_base_model_passes_through_unchanged(place, tmp_path, reason):
    if reason == "none":
        write_records(place.folder("prompts") / "prompts.parquet", demonstrations(9, "train"), Prompt)
    place.run(sft, "sft", config(enabled=reason == "none"), round=None)
    base = make_char_model(tmp_path / "base", layers=1, width=32, seed=0)
    assert weights(place) == (base / "model.safetensors").read_bytes()
    assert load_policy(place.path / "policy").tokenizer("3+4=")["input_ids"]


def test_the_best_weights_are_kept_and_training_stops_without_progress(place):
    wild = place.run(sft, "sft", config(epochs=40, learning_rate=0.3, patience=3, schedule="constant"), round=None)
    losses = [row["val_loss"] for row in wild.series if row["val_loss"] is not None]
    assert len(losses) < 40
    assert wild.metrics["val_loss"] <= min(losses)
    # The weights on disk are those that reached that loss.
    model, tokenizer, eos = load_policy(place.path / "policy")
    examples = build_examples(tokenizer, demonstrations(), eos, max_length=64, validation_fraction=0.25, seed=0)
    training = training_of(model, SftConfig(), examples)
    assert training.validation_loss() == pytest.approx(wild.metrics["val_loss"], rel=1e-5)


def test_only_the_response_and_its_end_are_trained_on(tmp_path):
    model = load_policy(make_char_model(tmp_path, layers=1, width=32, seed=0)).model
    examples = [Example([12, 13], [7, 1]), Example([12, 13, 14, 15], [8, 9, 1])]
    training = training_of(model, SftConfig(), Examples(examples, [], 0))
    found = sum(part.item() for part in training.mean_losses(examples))
    total = 0.0
    for example in examples:
        ids = torch.tensor([example.input_ids + example.response_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0, len(example.input_ids) - 1 : -1], -1)
        total -= logprobs.gather(1, torch.tensor(example.response_ids)[:, None]).sum().item()
    assert found == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.parametrize("budget", [16, 40, 4096])
def test_the_token_budget_changes_neither_loss_nor_gradient(tmp_path, budget):
    torch.set_num_threads(1)
    model = load_policy(make_char_model(tmp_path, layers=2, width=32, seed=0)).model
    examples = [Example([12] * (i + 1), [7 + i] * (1 + i % 4) + [1]) for i in range(9)]
    reference = None
    for limit in (4096, budget):
        model.zero_grad()
        training = training_of(model, SftConfig(token_budget=limit), Examples(examples, [], 0))
        parts = list(training.mean_losses(examples))
        for part in parts:
            part.backward()
        state = torch.cat([p.grad.flatten() for p in model.parameters()]), sum(part.item() for part in parts)
        reference = reference or state
    torch.testing.assert_close(state[0], reference[0], atol=1e-6, rtol=1e-4)
    assert state[1] == pytest.approx(reference[1], rel=1e-5)


def test_long_demonstrations_are_left_out_and_counted():
    rows = [*demonstrations(3), Prompt("long", "sums", "sft", None, "1+1=" * 20, {}, "2")]
    examples = build_examples(char_tokenizer(), rows, EOS, max_length=16, validation_fraction=0.0, seed=0)
    assert (len(examples.train), examples.too_long) == (3, 1)


def test_when_everything_is_too_long_the_error_says_what_to_raise(place):
    write_records(
        place.folder("prompts") / "prompts.parquet",
        [Prompt("long", "sums", "sft", None, "1+1=" * 20, {}, "2")],
        Prompt,
    )
    with pytest.raises(ConfigError, match=r"sft\.max_length is 16"):
        place.run(sft, "sft", config(max_length=16), round=None)


def test_validation_rows_are_not_trained_on_and_the_split_ignores_the_files_order():
    def split(rows):
        return build_examples(char_tokenizer(), rows, EOS, max_length=64, validation_fraction=0.25, seed=5)

    found = split(demonstrations())
    assert not [example for example in found.validation if example in found.train]
    assert split(demonstrations()[::-1]) == found


def test_an_epoch_is_every_example_once_in_a_seeded_order_of_its_own():
    examples = [Example([i], [1]) for i in range(10)]
    first, second = (epoch_steps(examples, batch_size=4, epoch=epoch, seed=0) for epoch in (0, 1))
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(e.input_ids[0] for batch in first for e in batch) == list(range(10))
    assert first != second
    assert first == epoch_steps(examples, batch_size=4, epoch=0, seed=0)


def test_a_loss_that_is_not_finite_fails_with_the_setting_to_change(place):
    with pytest.raises(StageError, match=r"lower sft\.learning_rate"):
        place.run(sft, "sft", config(learning_rate=1e30, warmup_ratio=0, validation_fraction=0), round=None)


def test_rows_of_the_file_replace_the_tasks_demonstrations(place):
    rows = [*demonstrations(), *demonstrations(6, task="sft.data")]
    write_records(place.folder("prompts") / "prompts.parquet", rows, Prompt)
    result = place.run(sft, "sft", config(data="rows.jsonl", validation_fraction=0), round=None)
    assert result.metrics["demonstrations"] == 6
    assert math.isfinite(result.metrics["loss"])
    assert result.metrics["val_loss"] is None
