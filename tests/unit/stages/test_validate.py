import json
import os
import subprocess
import sys

import pytest
from light_stage import run_light

from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import load_config, parse_config
from burnish.contracts.parquet import read_records
from burnish.contracts.records import Prompt
from burnish.stages.validate import check

PPO = {"preset": "ppo"}
GOOD = {"tasks": [{"source": "sums", "train_size": 20, "eval_size": 10, "sft_size": 5}]}


def config(**changes):
    return parse_config(GOOD | changes)


def test_it_writes_the_resolved_configuration_and_the_prompts(tmp_path):
    result, context = run_light("validate", tmp_path, GOOD | {"update": {"preset": "dapo"}})
    resolved = load_config(context.output_dir("resolved") / "config.yaml")
    assert resolved == parse_config(GOOD | {"update": {"preset": "dapo"}})
    assert resolved.update.loss.clip_high == 0.28
    prompts = read_records(context.output_dir("prompts") / "prompts.parquet", Prompt)
    assert result.metrics == {"prompts/sums/eval": 10.0, "prompts/sums/sft": 5.0, "prompts/sums/train": 20.0}
    assert result.counts == {"prompts": {"rows": 35, "train": 20, "eval": 10, "sft": 5}}
    assert len(prompts) == 35


def test_a_budget_that_cannot_be_held_here_is_said_aloud(monkeypatch, capsys):
    monkeypatch.delenv("BURNISH_RESOURCES", raising=False)
    check(config(cost={"cpu_hour": 1, "budget": 50}))
    assert "cost.budget is not held" in capsys.readouterr().out
    monkeypatch.setenv("BURNISH_RESOURCES", '{"cpu": 1}')
    check(config(cost={"cpu_hour": 1, "budget": 50}))
    assert "cost.budget" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout": {"top_p": 0.9}}, r"rollout.top_p is 0.9: truncated sampling biases"),
        ({"rollout": {"top_k": 50}}, r"rollout.top_k is 50: truncated sampling biases"),
        ({"rounds": 30}, "at most 40"),
        ({"model": {"path": "smollm2-135m-instuct"}}, "did you mean 'smollm2-135m-instruct'"),
        ({"model": {"path": "gpt"}}, "a packaged name .*, `char`, a local folder, or a Hugging Face id"),
        ({"model": {"path": "/nowhere/model"}}, "no such folder"),
        ({"reward": {"scorers": [{"name": "exakt"}]}}, "did you mean 'exact'"),
        ({"reward": {"scorers": [{"name": "code"}]}}, "nothing with a weight for task 'sums'.*add {name: exact}"),
        ({"reward": {"scorers": [{"name": "exact", "weight": 0}]}}, "nothing with a weight"),
        ({"reward": {"overlong_buffer": 100}}, "reward.overlong_buffer is 100"),
        ({"sft": {"data": "/nowhere.jsonl"}}, "sft.data is '/nowhere.jsonl'"),
        (
            {"tasks": [{"source": "sums", "train_size": 9}]},
            "sft_size .* above 0, give sft.data, or set sft.enabled=false",
        ),
        ({"tasks": [{"source": "summs"}]}, "did you mean 'sums'"),
        ({"model": {"path": "char"}}, "params.style=raw"),
        ({"update": PPO | {"critic": {"init": "/nowhere/reward"}}}, "update.critic.init is '/nowhere/reward': no such"),
        (
            {"update": PPO | {"critic": {"shared": True, "init": "org/reward"}}},
            "update.critic.init is 'org/reward' but",
        ),
        ({"update": PPO | {"critic": {"shared": True, "epochs": 2}}}, "update.critic.epochs is 2 but .* shared"),
        ({"update": PPO | {"critic": {"shared": True}}, "runtime": {"processes": 2}}, "runtime.processes is 2 but"),
        ({"cost": {"budget": 50}}, "cost.budget is 50 but nothing has a price; set cost.gpu_hour, cost.cpu_hour or"),
    ],
)
def test_each_mistake_is_one_line_with_the_fix(changes, says):
    with pytest.raises(ConfigError, match=says) as caught:
        check(config(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["smollm2-135m-instruct", "Qwen/Qwen3-0.6B"])
def test_packaged_names_and_hub_ids_are_plausible(path):
    assert check(config(model={"path": path}))


def test_a_local_folder_needs_a_model_in_it(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check(config(model={"path": str(tmp_path)}))
    (tmp_path / "config.json").write_text("{}")
    assert check(config(model={"path": str(tmp_path)}))


def test_the_character_model_takes_raw_ascii_text(tmp_path):
    raw = {"source": "sums", "params": {"style": "raw"}, "train_size": 9, "eval_size": 3, "sft_size": 3}
    assert len(check(config(model={"path": "char"}, tasks=[raw]))) == 15
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "naïve?", "answer": "1", "demonstration": "1"}))
    task = {"source": f"jsonl:{tmp_path / 'd.jsonl'}", "params": {"style": "raw"}, "train_size": 1, "eval_size": 0}
    with pytest.raises(ConfigError, match="does not know the character 'ï'"):
        check(config(model={"path": "char"}, tasks=[task], sft={"enabled": False}))


def test_think_tags_must_be_single_tokens_of_the_model(tmp_path, capsys):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    tokenizer = Tokenizer(WordLevel({"<": 0, "t": 1, ">": 2, "/": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.add_special_tokens(["<t>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    scorers = [{"name": "exact"}, {"name": "format", "params": {"think": ["<t>", "</t>"]}}]
    with pytest.raises(ConfigError, match=r"'</t>' is 4 tokens"):
        check(config(model={"path": str(tmp_path)}, reward={"scorers": scorers}))
    tokenizer.add_special_tokens(["</t>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert check(config(model={"path": str(tmp_path)}, reward={"scorers": scorers}))
    assert check(config(model={"path": "some/model"}, reward={"scorers": scorers}))
    assert "not checked" in capsys.readouterr().out


def test_demonstrations_from_a_file_become_prompts_unless_they_give_the_held_out_ones_away(tmp_path):
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps({"prompt": "Say hello", "response": "hello"}))
    prompts = check(config(sft={"data": str(path)}))
    assert [prompt.demonstration for prompt in prompts if prompt.task == "sft.data"] == ["hello"]
    held_out = next(prompt for prompt in prompts if prompt.split == "eval")
    path.write_text(json.dumps({"messages": [*held_out.messages, {"role": "assistant", "content": "1"}]}))
    with pytest.raises(ConfigError, match="same as a held-out prompt"):
        check(config(sft={"data": str(path)}))


@pytest.mark.parametrize("stage", ["validate", "execute", "reward"])
def test_light_stages_import_nothing_heavy(stage):
    heavy = ("torch", "transformers", "tokenizers", "kfp", "mlflow", "pandas", "sympy", "reasoning_gym", "math_verify")
    script = f"import sys, burnish.stages.{stage}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), timeout=60
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (PPO | {"learning_rate": 1e-6, "critic": {"learning_rate": 1e-5}}, ""),
        (PPO | {"learning_rate": 1e-6, "critic": {"learning_rate": 2e-4}}, "is 200 times update.learning_rate=1e-06"),
        (PPO | {"learning_rate": 1e-5, "critic": {"learning_rate": 1e-6}}, "is 0.1 times update.learning_rate=1e-05"),
        (PPO | {"learning_rate": 0.0}, ""),
        ({"preset": "grpo", "critic": {"learning_rate": 1.0}}, ""),
    ],
)
def test_learning_rates_of_policy_and_critic_that_lie_far_apart_are_pointed_out(update, says, capsys):
    check(config(update=update))
    found = capsys.readouterr().out
    assert ("update.critic.learning_rate" in found) == bool(says)
    assert says in found


@pytest.mark.parametrize(("limit", "said"), [(20, True), (21, False)])
def test_a_lambda_that_adapts_to_long_responses_is_pointed_out_where_all_are_short(limit, said, capsys):
    check(config(update={"preset": "vapo"}, rollout={"max_new_tokens": limit}))
    assert ("length_adaptive=0.05 makes lambda 0 for responses of up to 20 tokens" in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout": {"samples_per_prompt": 1}}, r"samples_per_prompt is 1: 'group' compares"),
        (
            {"update": {"preset": "gdpo", "kl": {"place": "reward"}}},
            r"update.kl.place is 'reward': gdpo normalises",
        ),
        (
            {"update": {"preset": "maxrl"}, "reward": {"overlong_buffer": 2}, "rollout": {"max_new_tokens": 8}},
            r"reward.overlong_buffer is 2: maxrl divides",
        ),
        ({"update": {"loss": {"dual_clip": 0.5}}}, r"update.loss.dual_clip is 0.5: it bounds"),
        ({"update": {"preset": "sapo", "loss": {"dual_clip": 3}}}, r"update.loss.dual_clip is 3.0: it bounds"),
    ],
)
def test_choices_that_contradict_each_other_are_refused_before_anything_runs(changes, says):
    with pytest.raises(ConfigError, match=says):
        check(config(**changes))


def test_a_sequence_ratio_with_the_clip_range_of_tokens_is_pointed_out(capsys):
    check(config(update={"preset": "gspo"}))
    assert "nothing will be clipped" not in capsys.readouterr().out
    check(config(update={"preset": "gspo", "loss": {"clip_high": 0.2}}))
    assert "nothing will be clipped; GSPO uses 3e-4 and 4e-4" in capsys.readouterr().out


@pytest.mark.parametrize("preset", ["reinforce_pp", "ppo"])
def test_one_sample_a_prompt_is_enough_where_no_group_is_compared(preset):
    assert check(config(update={"preset": preset}, rollout={"samples_per_prompt": 1}))
