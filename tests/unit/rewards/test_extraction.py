import pytest

from burnish.rewards.extraction import extract_code, extract_program

BODY = "def f(x):\n    return x"


@pytest.mark.parametrize(
    "response",
    [
        f"```python\n{BODY}\n```",
        f"Sure!\n\n```\n{BODY}\n```\nThat returns x.",
        f"```py\nprint(1)\n```\nthen\n```python\n{BODY}\n```",
        f"```python\n{BODY}",
        f"  ```python\n{BODY}\n  ```",
        BODY,
        f"Here is the function:\n{BODY}\nIt returns x.",
    ],
)
def test_the_function_is_found_fenced_or_bare_even_when_cut_off(response):
    namespace: dict = {}
    exec(extract_code(response, "f"), namespace)
    assert namespace["f"](3) == 3


CONTEXT = 'import math\n\ndef f(x):\n    """Doc."""\n'


@pytest.mark.parametrize(
    "response",
    [
        "    y = x\n    return y\n\ndef other():\n    pass",
        "    return x\nprint(f(1))",
        "return x",
        "y = x\n    return y",
        "```python\n    return x\n```",
        "```python\nreturn x\n```",
        "```python\nif x:\n    return x\nreturn x\n```",
        "if x:\n        return x\n    return x",
        f"```python\n{BODY}\n```",
    ],
)
def test_a_continuation_completes_the_prompts_own_code(response):
    namespace: dict = {}
    exec(extract_code(response, "f", CONTEXT), namespace)
    assert namespace["f"](3) == 3


def test_the_context_stands_before_a_whole_function_too():
    namespace: dict = {}
    exec(extract_code("```python\ndef f(x):\n    return math.floor(x)\n```", "f", CONTEXT), namespace)
    assert namespace["f"](3.5) == 3


def test_a_program_for_standard_input_is_taken_whole():
    assert extract_code("Here:\nn = int(input())\nprint(n)\nThis prints n.") == "n = int(input())\nprint(n)"


@pytest.mark.parametrize("response", ["", "```", "```python", "no code at all", "\n\n", "`" * 1000, "def", "```\n```"])
def test_nonsense_gives_some_text_and_never_fails(response):
    assert isinstance(extract_code(response, "f"), str)
    assert isinstance(extract_code(response, "f", CONTEXT), str)
    assert isinstance(extract_code(response), str)


@pytest.mark.parametrize(
    ("response", "language", "program"),
    [
        ("Run `make`:\n```sh\nmake\n```\n```c++\nint main() {}\n```\n", "cpp", "int main() {}"),
        ("```sh\nmake\n```\n```C\nint main() {}", "c", "int main() {}"),
        ("```\necho 3\n```", "bash", "echo 3"),
        ("```text\nlet x\n```", "javascript", "let x"),
        ("#include <stdio.h>\nint main() {}", "c", "#include <stdio.h>\nint main() {}"),
    ],
)
def test_a_program_in_another_language_is_its_own_block_or_all_there_is(response, language, program):
    assert extract_program(response, language) == program
