import json
import shutil
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from burnish.contracts.algorithm import CriticConfig
from burnish.contracts.config import LoraConfig, ModelConfig
from burnish.contracts.errors import ConfigError, ContractError
from burnish.models.char import char_tokenizer, make_char_model
from burnish.models.critic import Critic, find_critic, head_values, load_critic, save_critic
from burnish.models.load import load_policy, load_trainable
from burnish.models.logprobs import plan_batches
from burnish.models.lora import adapter_parameters, save_adapter
from burnish.models.probe import probe_layers

MODEL = ModelConfig(path="char")


@dataclass(frozen=True)
class Sample:
    input_ids: list[int]
    response_ids: list[int]
    temperature: float = 1.0


def samples():
    """Three prompts with 3, 1 and 4 completions."""
    generator = torch.Generator().manual_seed(0)
    tokens = lambda count: torch.randint(3, 90, (count,), generator=generator).tolist()  # noqa: E731
    found = []
    for prompt_length, lengths in ((7, (3, 1, 9)), (2, (4,)), (12, (1, 1, 8, 5))):
        prompt = tokens(prompt_length)
        found += [Sample(prompt, tokens(length)) for length in lengths]
    return found


def reward_model(folder, outputs=1, seed=5):
    """A sequence classifier in `folder`, with the character tokenizer."""
    torch.manual_seed(seed)
    tokenizer = char_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_labels=outputs,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def find(artifact, policy, scratch, **settings):
    return find_critic(artifact, policy, CriticConfig(**settings), MODEL, scratch)


def filled(critic, seed=1):
    """The critic with a head that says something."""
    with torch.no_grad():
        torch.manual_seed(seed)
        critic.head.weight.normal_()
        critic.head.bias.fill_(0.25)
    return critic


def values_of(critic, completions, *, share_prompt, token_budget=512):
    """Values of each completion, in the order of `completions`."""
    found = [None] * len(completions)
    plan = plan_batches(probe_layers(critic.layers), completions, token_budget=token_budget, share_prompt=share_prompt)
    for batch in plan:
        for index, part in zip(batch.order, critic(batch).split(batch.lengths), strict=True):
            found[index] = part
    return found


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_a_new_critic_has_the_policy_s_layers_and_values_of_zero(char_folder, empty, tmp_path):
    origin = find(empty, char_folder, tmp_path)
    assert origin.silent
    critic = load_critic(origin, MODEL, "cpu")
    assert all(not values.any() for values in values_of(critic, samples(), share_prompt=True))
    policy = load_policy(char_folder).model.base_model.state_dict()
    own = critic.layers.state_dict()
    assert own.keys() == policy.keys()
    assert all(torch.equal(own[name], value) for name, value in policy.items())


@pytest.mark.parametrize("token_budget", [512, 33])
def test_shared_prompts_give_the_values_and_gradients_of_separate_rows(char_folder, empty, tmp_path, token_budget):
    critic = filled(load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu"))
    results, gradients = [], []
    for share_prompt in (True, False):
        critic.zero_grad()
        results.append(values_of(critic, samples(), share_prompt=share_prompt, token_budget=token_budget))
        flat = torch.cat(results[-1])
        (flat * torch.linspace(0.5, 1.5, len(flat))).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in critic.parameters()])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_a_token_s_value_is_the_head_on_the_state_before_it(char_folder, empty, tmp_path):
    critic = filled(load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu"))
    for sample, values in zip(samples(), values_of(critic, samples(), share_prompt=True), strict=True):
        ids = torch.tensor([sample.input_ids + sample.response_ids])
        states = critic.layers(input_ids=ids).last_hidden_state[0]
        expected = states[len(sample.input_ids) - 1 : -1] @ critic.head.weight[0] + 0.25
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


def test_a_value_does_not_depend_on_the_token_it_judges(char_folder, empty, tmp_path):
    critic = filled(load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu"))
    one, two = values_of(critic, [Sample([5, 6], [7, 8]), Sample([5, 6], [9, 8])], share_prompt=True)
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_what_is_saved_is_what_is_loaded_bit_by_bit(char_folder, empty, tmp_path):
    critic = filled(load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_critic(tmp_path / name, critic.head, critic.layers)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["config.json", "critic.json", "model.safetensors", "value_head.safetensors"]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    again = load_critic(find(tmp_path / "one", char_folder, tmp_path), MODEL, "cpu")
    for name, value in critic.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_an_artifact_goes_before_the_place_to_start_from(char_folder, empty, tmp_path):
    critic = filled(load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu"))
    save_critic(empty, critic.head, critic.layers)
    origin = find(empty, char_folder, tmp_path, init="/no/such/folder")
    assert origin.layers == empty
    assert torch.equal(origin.head.weight, critic.head.weight)


def test_a_shared_critic_is_a_head_alone(char_folder, empty, tmp_path):
    origin = find(empty, char_folder, tmp_path, shared=True)
    assert (origin.layers, origin.silent) == (None, True)
    torch.nn.init.ones_(origin.head.weight)
    save_critic(empty, origin.head, None)
    assert sorted(path.name for path in empty.iterdir()) == ["critic.json", "value_head.safetensors"]
    again = find(empty, char_folder, tmp_path, shared=True)
    assert (again.layers, again.silent) == (None, False)
    assert head_values(again.head, torch.ones(2, 32)).tolist() == [32.0, 32.0]


@pytest.mark.parametrize("made_shared", [True, False])
def test_an_artifact_of_the_other_kind_is_refused(char_folder, empty, tmp_path, made_shared):
    critic = load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu")
    save_critic(empty, critic.head, None if made_shared else critic.layers)
    with pytest.raises(ContractError, match=f"update.critic.shared={str(made_shared).lower()}"):
        find(empty, char_folder, tmp_path, shared=not made_shared)


def test_a_reward_model_hands_its_head_over(char_folder, empty, tmp_path):
    model = reward_model(tmp_path / "reward")
    origin = find(empty, char_folder, tmp_path, init=str(tmp_path / "reward"))
    assert not origin.silent
    critic = load_critic(origin, MODEL, "cpu")
    assert torch.equal(critic.head.weight, model.score.weight)
    # The classifier reads its score at the last token: the value of the token that would follow.
    sample = Sample([5, 6, 7], [8, 9])
    score = model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, 0]
    (values,) = values_of(critic, [sample], share_prompt=True)
    torch.testing.assert_close(values[-1], score)


def test_a_classifier_of_several_outputs_gives_its_layers_alone(char_folder, empty, tmp_path):
    reward_model(tmp_path / "classifier", outputs=3)
    origin = find(empty, char_folder, tmp_path, init=str(tmp_path / "classifier"))
    assert origin.silent
    assert origin.layers == tmp_path / "classifier"


def test_another_language_model_may_be_the_start(char_folder, empty, tmp_path):
    other = make_char_model(tmp_path / "other", layers=1, width=64, seed=9)
    critic = load_critic(find(empty, char_folder, tmp_path, init=str(other)), MODEL, "cpu")
    assert critic.head.in_features == 64


def test_a_model_of_other_tokens_is_refused(char_folder, empty, tmp_path):
    reward_model(tmp_path / "reward")
    path = tmp_path / "reward" / "tokenizer.json"
    tree = json.loads(path.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="tokenizer is not the policy's"):
        find(empty, char_folder, tmp_path, init=str(tmp_path / "reward"))


def test_a_start_that_is_not_there_is_named(char_folder, empty, tmp_path):
    (tmp_path / "hollow").mkdir()
    with pytest.raises(ConfigError, match=r"update\.critic\.init is"):
        find(empty, char_folder, tmp_path, init=str(tmp_path / "hollow"))


def test_weights_that_are_missing_are_never_made_up(char_folder, empty, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(char_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ContractError, match=r"layers\.2"):
        load_critic(find(empty, folder, tmp_path), MODEL, "cpu")


def test_a_damaged_artifact_is_one_clear_error(char_folder, empty, tmp_path):
    critic = load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu")
    save_critic(empty, critic.head, critic.layers)
    (empty / "value_head.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(ContractError, match="not a readable critic artifact"):
        find(empty, char_folder, tmp_path)


def test_a_critic_is_a_module_whose_parameters_are_layers_and_head(char_folder, empty, tmp_path):
    critic = load_critic(find(empty, char_folder, tmp_path), MODEL, "cpu")
    assert isinstance(critic, Critic)
    assert {name.split(".")[0] for name, _ in critic.named_parameters()} == {"layers", "head"}


def test_a_critic_starts_from_the_policy_as_its_adapter_makes_it(char_folder, empty, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(char_folder, policy)
    settings = MODEL.model_copy(update={"lora": LoraConfig(rank=2)})
    model = load_trainable(policy, settings, device="cpu", seed=0).model
    adapter = adapter_parameters(model)
    for parameter in adapter.values():
        torch.nn.init.normal_(parameter)
    save_adapter(model, {name: value.detach() for name, value in adapter.items()}, policy)
    critic = load_critic(find(empty, policy, tmp_path), settings, "cpu")
    sample = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        wanted = model.base_model(input_ids=sample).last_hidden_state
        plain = load_policy(char_folder).model.base_model(input_ids=sample).last_hidden_state
        found = critic.layers(input_ids=sample).last_hidden_state
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, plain, atol=1e-2)
    assert all(parameter.requires_grad for parameter in critic.parameters())
    (tmp_path / "saved").mkdir()
    save_critic(tmp_path / "saved", critic.head, critic.layers)
    again = load_critic(find(tmp_path / "saved", policy, tmp_path), settings, "cpu")
    assert again.state_dict().keys() == critic.state_dict().keys()
    assert sorted(path.name for path in (tmp_path / "saved").glob("*")) == [
        "config.json",
        "critic.json",
        "model.safetensors",
        "value_head.safetensors",
    ]
