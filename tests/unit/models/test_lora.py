import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.contracts.config import LoraConfig, ModelConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.models.load import copy_policy, load_policy, load_trainable
from burnish.models.lora import adapter_parameters
from burnish.models.parallel import ParallelPolicy, Ranks

TOKENS = torch.tensor([[3, 14, 15, 9, 26, 5]])


def model_config(**lora):
    return ModelConfig(path="char", lora=LoraConfig(**{"rank": 4, **lora}))


def train_a_little(folder, out, config, seed=0):
    """A policy with an adapter that does something, written to `out`."""
    model, tokenizer, _ = load_trainable(folder, config, device="cpu", seed=seed)
    with torch.no_grad():
        for name, parameter in adapter_parameters(model).items():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.save(out, tokenizer, source=folder, trust_remote_code=False)
    return model


@pytest.fixture
def adapted(char_folder, tmp_path):
    train_a_little(char_folder, tmp_path / "policy", model_config())
    return tmp_path / "policy"


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def change_config(adapted, **fields):
    path = adapted / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_only_the_adapter_is_trainable_and_a_new_one_changes_nothing(char_folder):
    model = load_trainable(char_folder, model_config(), device="cpu", seed=0).model
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Two layers of width 32, four square targets each: A is [4, 32], B is [32, 4].
    assert sum(parameter.numel() for parameter in trainable) == 2 * 4 * 2 * 4 * 32
    assert {id(parameter) for parameter in trainable} == {id(each) for each in adapter_parameters(model).values()}
    torch.testing.assert_close(logits(model), logits(load_policy(char_folder).model), atol=0, rtol=0)


def test_the_base_models_files_are_saved_as_they_were(char_folder, adapted):
    assert digests(adapted) == digests(char_folder)
    assert {path.name for path in (adapted / "adapter").iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
    }


def test_merged_and_unmerged_give_the_same_logits(char_folder, adapted):
    beside, merged = load_policy(adapted).model, load_policy(adapted, merge=True).model
    assert adapter_parameters(beside)
    assert not adapter_parameters(merged)
    assert type(merged) is type(load_policy(char_folder).model)
    torch.testing.assert_close(logits(merged), logits(beside), atol=1e-5, rtol=1e-5)
    assert (logits(merged) - logits(load_policy(char_folder).model)).abs().max() > 0.1


def test_an_adapter_is_merged_in_float32_whatever_the_type_it_serves_in(adapted):
    exact = load_policy(adapted, merge=True).model.state_dict()
    served = load_policy(adapted, merge=True, dtype=torch.bfloat16).model.state_dict()
    for name, weight in served.items():
        assert weight.dtype == torch.bfloat16
        torch.testing.assert_close(weight, exact[name].bfloat16(), atol=0, rtol=0)


def test_what_is_saved_is_what_is_loaded_and_the_seed_decides_a_new_adapter(char_folder, tmp_path):
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        train_a_little(char_folder, tmp_path / name, model_config(), seed=seed)
    first, again, other = (
        (tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("first", "again", "other")
    )
    assert first == again != other
    model, tokenizer, _ = load_trainable(tmp_path / "first", model_config(), device="cpu", seed=9)
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.save(tmp_path / "copy", tokenizer, source=tmp_path / "first", trust_remote_code=False)
    assert (tmp_path / "copy" / "adapter" / "adapter_model.safetensors").read_bytes() == first


def test_peft_itself_reads_the_adapter(char_folder, adapted):
    from peft import PeftModel

    model = PeftModel.from_pretrained(load_policy(char_folder).model, str(adapted / "adapter"))
    torch.testing.assert_close(logits(model), logits(load_policy(adapted).model), atol=0, rtol=0)


def test_all_linear_is_every_layer_but_the_head(char_folder, tmp_path):
    train_a_little(char_folder, tmp_path / "policy", model_config(targets=["all-linear"]))
    config = json.loads((tmp_path / "policy" / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    load_trainable(tmp_path / "policy", model_config(targets=["all-linear"]), device="cpu", seed=0)


def test_without_lora_a_policy_with_an_adapter_is_trained_whole_and_saved_without_it(adapted, tmp_path):
    model, tokenizer, _ = load_trainable(adapted, model_config(rank=0), device="cpu", seed=0)
    assert all(parameter.requires_grad for parameter in model.parameters())
    policy = ParallelPolicy(model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
    policy.save(tmp_path / "whole", tokenizer, source=adapted, trust_remote_code=False)
    assert not (tmp_path / "whole" / "adapter").exists()
    torch.testing.assert_close(
        logits(load_policy(tmp_path / "whole").model), logits(load_policy(adapted).model), atol=1e-5, rtol=1e-5
    )


def test_a_copied_policy_keeps_its_adapter(adapted, tmp_path):
    copy_policy(adapted, tmp_path / "copy")
    assert digests(tmp_path / "copy" / "adapter") == digests(adapted / "adapter")


def test_targets_the_model_does_not_have_are_named_with_those_it_has(char_folder):
    with pytest.raises(ConfigError, match=r"model\.lora\.targets names 'query'.*there are down_proj, gate_proj"):
        load_trainable(char_folder, model_config(targets=["q_proj", "query"]), device="cpu", seed=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank": 8}, r"model\.lora\.rank is 8, but the policy's adapter has 4"),
        ({"alpha": 3}, r"model\.lora\.alpha is 3\.0, but the policy's adapter has 16"),
        ({"targets": ["q_proj"]}, r"model\.lora\.targets is \['q_proj'\], but"),
    ],
)
def test_an_adapter_of_other_settings_is_not_trained_on(adapted, changed, message):
    with pytest.raises(ConfigError, match=message):
        load_trainable(adapted, model_config(**changed), device="cpu", seed=0)


def test_a_pickled_adapter_is_refused(adapted):
    folder = adapted / "adapter"
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ContractError, match=r"adapter_config\.json, adapter_model\.bin; only safetensors are read"):
        load_policy(adapted)


def change_weights(adapted, change):
    path = adapted / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({NAME: torch.zeros(4, 64)}), r"q_proj\.lora_A\.weight is \[4, 64\] and must be \[4, 32\]"),
        (lambda t: t.pop(NAME), r"q_proj\.lora_A\.weight is nothing and must be \[4, 32\]"),
        (lambda t: t.update({"extra": torch.zeros(1)}), "extra has no place in this model"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_one_clear_error(adapted, change, message):
    change_weights(adapted, change)
    with pytest.raises(ContractError, match=message) as error:
        load_policy(adapted)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "use_dora is not of a plain LoRA adapter"),
        ({"peft_type": "IA3"}, "peft_type or bias"),
        ({"r": "many"}, "rank"),
        ({"target_modules": ["query"]}, "names 'query'"),
    ],
)
def test_other_kinds_of_adapters_are_refused(adapted, fields, message):
    change_config(adapted, **fields)
    with pytest.raises(ContractError, match=message):
        load_policy(adapted)


def test_an_adapter_without_its_configuration_is_refused(adapted):
    (adapted / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(ContractError, match=r"adapter_config\.json"):
        load_policy(adapted)


def test_an_empty_adapter_folder_is_refused(adapted):
    shutil.rmtree(adapted / "adapter")
    (adapted / "adapter").mkdir()
    with pytest.raises(ContractError, match="nothing; only safetensors"):
        load_policy(adapted)
