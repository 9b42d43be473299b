import json
import shutil

import pytest
import torch

from burnish.contracts.config import ModelConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.models.load import copy_policy, load_policy, resolve_base_model, save_policy


def test_a_saved_policy_comes_back_with_the_same_weights_and_a_tied_head(char_policy, tmp_path):
    model, tokenizer, _ = char_policy
    with torch.no_grad():
        model.get_input_embeddings().weight[5] += 1.0
    save_policy(model, tokenizer, tmp_path)
    again, _, _ = load_policy(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert not again.training
    assert again.dtype == torch.float32


def test_a_head_with_weights_of_its_own_is_saved_although_the_configuration_says_tied(char_policy, tmp_path):
    model, tokenizer, _ = char_policy
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach() + 1.0)
    save_policy(model, tokenizer, tmp_path)
    again, _, _ = load_policy(tmp_path)
    assert torch.equal(again.get_output_embeddings().weight, head.weight)
    assert not torch.equal(again.get_output_embeddings().weight, again.get_input_embeddings().weight)


def test_equal_weights_give_equal_bytes(char_folder, tmp_path):
    for name in ("a", "b"):
        model, tokenizer, _ = load_policy(char_folder)
        save_policy(model, tokenizer, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "model.safetensors" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_every_listed_end_of_sequence_id_ends_a_sequence_and_so_does_the_tokenizers(char_folder, tmp_path):
    shutil.copytree(char_folder, tmp_path / "policy")
    path = tmp_path / "policy" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [7, 9]}))
    policy = load_policy(tmp_path / "policy")
    assert policy.eos_token_ids == {7, 9, policy.tokenizer.eos_token_id}


def test_a_policy_that_never_ends_is_refused(char_folder, tmp_path):
    shutil.copytree(char_folder, tmp_path / "policy")
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        path = tmp_path / "policy" / name
        values = json.loads(path.read_text())
        path.write_text(json.dumps({key: None if key.startswith("eos_token") else v for key, v in values.items()}))
    with pytest.raises(ContractError, match="eos_token_id"):
        load_policy(tmp_path / "policy")


def test_pickled_weights_are_not_read(char_folder, tmp_path):
    shutil.copytree(char_folder, tmp_path / "policy")
    (tmp_path / "policy" / "model.safetensors").rename(tmp_path / "policy" / "pytorch_model.bin")
    with pytest.raises(ContractError, match="safetensors"):
        load_policy(tmp_path / "policy")


def test_a_copied_policy_leaves_pickles_and_code_behind(char_folder, tmp_path):
    shutil.copytree(char_folder, tmp_path / "base")
    for name in ("optimizer.pt", "pytorch_model.bin", "modeling_char.py"):
        (tmp_path / "base" / name).write_text("x")
    copy_policy(tmp_path / "base", tmp_path / "policy")
    expected = {path.name for path in char_folder.iterdir()}
    assert {path.name for path in (tmp_path / "policy").iterdir()} == expected
    copy_policy(tmp_path / "base", tmp_path / "trusted", trust_remote_code=True)
    assert {path.name for path in (tmp_path / "trusted").iterdir()} == expected | {"modeling_char.py"}


def test_a_local_folder_is_used_as_it_is(char_folder, tmp_path):
    config = ModelConfig(path=str(char_folder))
    assert resolve_base_model(config, seed=0, scratch=tmp_path) == char_folder


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path is .*config\.json"):
        resolve_base_model(ModelConfig(path=str(tmp_path)), seed=0, scratch=tmp_path)


@pytest.mark.parametrize("path", ["no-such-model", "someone/no-such-model", "/no/such/folder"])
def test_a_model_that_cannot_be_had_is_one_line_that_says_what_is_accepted(path, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="smollm2-135m-instruct, char") as caught:
        resolve_base_model(ModelConfig(path=path), seed=0, scratch=tmp_path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_character_model_is_made_from_the_seed(tmp_path):
    config = ModelConfig(path="char", layers=1, width=32)
    first, same, other = (
        resolve_base_model(config, seed=seed, scratch=tmp_path / name) / "model.safetensors"
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.read_bytes() == same.read_bytes() != other.read_bytes()
