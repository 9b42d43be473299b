import json

import pytest

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt
from burnish.tasks import load_task


def load(seed=0, **config) -> list[Prompt]:
    return load_task(TaskConfig(**config), seed)


def of(prompts, split):
    return [prompt for prompt in prompts if prompt.split == split]


def questions(prompts):
    return {" ".join((p.text or json.dumps(p.messages)).casefold().split()) for p in prompts}


SMALL = {"train_size": 40, "eval_size": 20, "sft_size": 30}
SOURCES = [
    {"source": "sums", **SMALL},
    {"source": "sums", "params": {"style": "raw"}, "train_size": 70, "eval_size": 30, "sft_size": 70},
    {"source": "code", **SMALL},
    {"source": "code", "params": {"dataset": "humaneval"}, **SMALL},
    {"source": "reasoning_gym:chain_sum", "params": {"max_terms": 2, "max_digits": 1}, **SMALL},
]


@pytest.mark.parametrize("config", SOURCES, ids=lambda config: f"{config['source']}-{config.get('params', {})}")
def test_every_source_gives_the_sizes_asked_for_and_holds_eval_prompts_out(config):
    prompts = load(**config)
    assert len(of(prompts, "train")) == config["train_size"]
    assert len(of(prompts, "eval")) == config["eval_size"]
    assert len(of(prompts, "sft")) == config["sft_size"]
    assert not questions(of(prompts, "eval")) & questions(of(prompts, "train"))
    assert not questions(of(prompts, "eval")) & questions(of(prompts, "sft"))
    assert len(questions(of(prompts, "train"))) == config["train_size"]
    assert len({prompt.prompt_id for prompt in prompts}) == len(prompts)
    assert all(prompt.demonstration for prompt in of(prompts, "sft"))
    assert all(prompt.demonstration is None for prompt in of(prompts, "train"))


@pytest.mark.parametrize("config", SOURCES, ids=lambda config: f"{config['source']}-{config.get('params', {})}")
def test_the_seed_alone_decides_and_rows_survive_parquet(config, tmp_path):
    prompts = load(**config)
    assert load(**config) == prompts
    assert {p.prompt_id for p in of(load(seed=1, **config), "eval")} != {p.prompt_id for p in of(prompts, "eval")}
    write_records(tmp_path / "prompts.parquet", prompts, Prompt)
    assert read_records(tmp_path / "prompts.parquet", Prompt) == prompts


def test_more_training_prompts_leave_the_held_out_ones_as_they_were():
    few, many = load(source="sums", train_size=20, eval_size=10), load(source="sums", train_size=80, eval_size=10)
    assert of(few, "eval") == of(many, "eval")


def test_an_id_depends_on_task_and_content_not_on_the_seed():
    first = {p.text: p.prompt_id for p in load(source="sums", params={"style": "raw"}, train_size=100, eval_size=0)}
    other = load(seed=5, source="sums", params={"style": "raw"}, train_size=100, eval_size=0)
    assert {p.text: p.prompt_id for p in other} == first
    named = load(source="sums", name="other", params={"style": "raw"}, train_size=100, eval_size=0)
    assert not {p.prompt_id for p in named} & set(first.values())


def test_sums_are_right_in_both_styles():
    for prompt in load(source="sums", params={"style": "raw"}, train_size=100, eval_size=0):
        a, b = prompt.text.removesuffix("=").split("+")
        assert prompt.verifier == {"kind": "exact", "answer": str(int(a) + int(b))}
    chat = load(source="sums", train_size=1, eval_size=0)[0]
    assert [turn["role"] for turn in chat.messages] == ["system", "user"]


def test_sums_grow_to_the_sizes_unless_told_otherwise():
    assert len(load(source="sums")) == 256 + 64
    with pytest.raises(ConfigError, match=r"train_size 256 .* has 100; set train_size to at most 36"):
        load(source="sums", params={"max_operand": 9})
    with pytest.raises(ConfigError, match=r"sft_size 90 .* at most 80"):
        load(source="sums", params={"max_operand": 9}, train_size=10, eval_size=20, sft_size=90)


def test_generated_functions_come_with_tests_that_their_demonstration_passes_and_a_constant_does_not():
    for prompt in of(load(source="code", train_size=1, eval_size=0, sft_size=200), "sft"):
        namespace: dict = {}
        exec(prompt.demonstration.removeprefix("```python\n").removesuffix("```"), namespace)
        tests = prompt.verifier["tests"]
        function = namespace[prompt.verifier["entry_point"]]
        assert all(function(*test["args"]) == test["expected"] for test in tests)
        assert len({json.dumps(test["expected"]) for test in tests}) > 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": "sum"}, "did you mean 'sums'"),
        ({"source": "reasoning-gym:chain_sum"}, "did you mean 'reasoning_gym:NAME'"),
        ({"source": "zzz"}, "known: sums, reasoning_gym:NAME, code, jsonl:PATH"),
        ({"source": "jsonl"}, "write 'jsonl:PATH'"),
        ({"source": "sums:3"}, "write 'sums'"),
        ({"source": "reasoning_gym:chain_sums"}, "did you mean 'reasoning_gym:chain_sum'"),
        ({"source": "reasoning_gym:chain_sum", "params": {"max_term": 3}}, "params do not fit chain_sum"),
        ({"source": "reasoning_gym:chain_sum", "params": {"seed": 3}}, "params.seed is set by"),
        ({"source": "sums", "params": {"max_operan": 3}}, "did you mean 'max_operand'"),
        ({"source": "sums", "params": {"style": "prose"}}, "params.style is 'prose'"),
        ({"source": "code", "params": {"dataset": "mbpp"}}, "params.dataset is 'mbpp'"),
        ({"source": "code", "params": {"dataset": "humaneval"}}, r"HumanEval has 164; set train_size to at most 100"),
        ({"source": "jsonl:/nowhere.jsonl"}, "cannot be read"),
    ],
)
def test_a_wrong_task_is_one_line_with_the_fix(config, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(**config)
    assert "\n" not in str(caught.value)


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return f"jsonl:{path}"


def test_rows_of_a_file_are_divided_by_the_sizes(tmp_path):
    rows = [{"prompt": f"{n}?", "answer": n, "demonstration": str(n), "task": "counting"} for n in range(30)]
    prompts = load(source=write(tmp_path / "d.jsonl", *rows), name="d", train_size=15, eval_size=10, sft_size=5)
    assert [len(of(prompts, split)) for split in ("train", "eval", "sft")] == [15, 10, 5]
    assert prompts[0].verifier == {"kind": "exact", "answer": prompts[0].messages[0]["content"].removesuffix("?")}
    assert prompts[0].metadata == {"task": "counting"}


def test_rows_with_a_split_go_there(tmp_path):
    rows = [{"prompt": f"t{n}", "answer": "x", "split": "train"} for n in range(3)]
    rows += [{"prompt": f"e{n}", "answer": "x", "split": "eval"} for n in range(2)]
    prompts = load(source=write(tmp_path / "d.jsonl", *rows), train_size=3, eval_size=2)
    assert {p.messages[0]["content"][0] for p in of(prompts, "train")} == {"t"}
    assert {p.messages[0]["content"][0] for p in of(prompts, "eval")} == {"e"}
    with pytest.raises(ConfigError, match=r"train_size is 4, the file has 3 .* at most 3"):
        load(source=write(tmp_path / "d.jsonl", *rows), train_size=4, eval_size=2)


def test_rows_may_be_raw_text_math_or_code(tmp_path):
    rows = [
        {"prompt": "1/2+1/3=", "answer": "5/6", "verifier": "math"},
        {"prompt": "f", "entry_point": "f", "tests": [{"expected": 1}], "context": "import math\n"},
    ]
    prompts = load(source=write(tmp_path / "d.jsonl", *rows), params={"style": "raw"}, train_size=2, eval_size=0)
    kinds = {prompt.text: prompt.verifier["kind"] for prompt in prompts}
    assert kinds == {"1/2+1/3=": "math", "f": "code"}


def test_all_that_tests_of_code_need_goes_with_the_row(tmp_path):
    spec = {"tests": [{"stdin": "", "stdout": "0.5"}], "language": "c", "compare": "float", "tolerance": 0.1}
    spec |= {"files": {"x": "y"}, "checker": "def check(input, expected, got): return True"}
    rows = [{"prompt": "f", **spec}, {"prompt": "g", **spec}]
    prompts = load(source=write(tmp_path / "d.jsonl", *rows), train_size=2, eval_size=0)
    assert prompts[0].verifier == {"kind": "code", **spec}


GOOD = {"prompt": "1?", "answer": "1"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "not JSON"),
        ("3", "must be an object"),
        ({"answer": "1"}, "exactly one of prompt and messages"),
        ({**GOOD, "messages": []}, "exactly one of prompt and messages"),
        ({"prompt": 3, "answer": "1"}, "prompt must be a string"),
        ({"prompt": "x"}, "exactly one of answer and tests"),
        ({**GOOD, "tests": []}, "exactly one of answer and tests"),
        ({"prompt": "x", "answer": None}, "answer must be"),
        ({"prompt": "x", "answer": " "}, "answer must be"),
        ({"prompt": "x", "tests": [{"expected": 1}]}, "entry_point is missing"),
        ({"prompt": "x", "tests": []}, "tests must be a list"),
        (
            {"prompt": "x", "tests": [{"stdin": "", "stdout": ""}], "language": "d"},
            "language is 'd'; use one of",
        ),
        ({**GOOD, "split": "test"}, "split is 'test'; use train, eval or sft"),
        ({**GOOD, "split": "sft"}, "an sft row needs"),
        ({**GOOD, "verifier": "llm"}, "verifier is 'llm'"),
        ({**GOOD, "anwser": 1}, "unknown key 'anwser'"),
        ({**GOOD, "demonstration": 3}, "demonstration must be a string"),
        ({"messages": [{"role": "human", "content": "x"}], "answer": "1"}, "each turn"),
        ({"messages": [{"role": "assistant", "content": "x"}], "answer": "1"}, "last turn is the assistant's"),
    ],
)
def test_a_wrong_row_is_one_error_with_its_line(tmp_path, row, says):
    source = write(tmp_path / "d.jsonl", GOOD, "", row)
    with pytest.raises(ConfigError, match=rf"d\.jsonl, line 3: .*{says}") as caught:
        load(source=source, train_size=1, eval_size=0)
    assert "\n" not in str(caught.value)


def test_a_prompt_in_two_splits_is_refused_when_one_is_held_out(tmp_path):
    rows = [
        {"prompt": "What is  1?", "answer": "1", "split": "train"},
        {"prompt": "what is 1?", "answer": "1", "split": "eval"},
    ]
    with pytest.raises(ConfigError, match="line 2: asks the same as line 1"):
        load(source=write(tmp_path / "d.jsonl", *rows), train_size=1, eval_size=1)


def test_sft_rows_need_something_to_imitate(tmp_path):
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(4)]
    with pytest.raises(ConfigError, match="no demonstrations"):
        load(source=write(tmp_path / "d.jsonl", *rows), train_size=1, eval_size=1, sft_size=1)


def test_the_example_file_loads():
    prompts = load(source="jsonl:examples/data/products.jsonl", train_size=6, eval_size=2, sft_size=2)
    assert {prompt.verifier["kind"] for prompt in prompts} <= {"exact", "math", "code"}
