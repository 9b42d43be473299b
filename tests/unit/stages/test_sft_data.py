import json

import pytest

from burnish.contracts.errors import ConfigError
from burnish.stages.sft_data import read_demonstrations


def write(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_prompt_and_response_rows_become_raw_text_demonstrations(tmp_path):
    (row,) = read_demonstrations(write(tmp_path, {"prompt": "3+4=", "response": "7"}, ""))
    assert (row.text, row.messages, row.demonstration, row.split) == ("3+4=", None, "7", "sft")
    row.check()


def test_every_assistant_turn_is_trained_once_behind_the_turns_before_it(tmp_path):
    roles = ("system", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": str(index)} for index, role in enumerate(roles)]
    rows = read_demonstrations(write(tmp_path, {"messages": turns}))
    assert [(len(row.messages), row.demonstration) for row in rows] == [(2, "2"), (4, "4")]
    assert len({row.prompt_id for row in rows}) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ({"text": "x"}, "line 2: give `messages`"),
        ({"prompt": "x", "messages": []}, "line 2: give `messages`"),
        ({"prompt": "x", "response": ""}, "line 2: `prompt` and `response`"),
        ({"prompt": "x", "response": 7}, "line 2: `prompt` and `response`"),
        ({"messages": [{"role": "user"}]}, "line 2: `messages` must be"),
        ({"messages": [{"role": "user", "content": "x"}]}, "line 2: no assistant turn"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, row, message):
    with pytest.raises(ConfigError, match=message):
        read_demonstrations(write(tmp_path, {"prompt": "a", "response": "b"}, row))


def test_a_file_without_rows_or_without_itself_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no rows"):
        read_demonstrations(write(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_demonstrations(tmp_path / "none.jsonl")
