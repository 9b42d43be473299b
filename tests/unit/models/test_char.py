import string

import pytest

from burnish.contracts.errors import ConfigError
from burnish.models.char import char_tokenizer, make_char_model


def test_every_character_is_one_token_and_comes_back():
    tokenizer = char_tokenizer()
    text = string.digits + string.ascii_letters + string.punctuation + " \n  a\n\n"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids


def test_an_unknown_character_is_one_unknown_token():
    tokenizer = char_tokenizer()
    assert tokenizer("1é2")["input_ids"][1] == tokenizer.unk_token_id


def test_a_width_without_whole_heads_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.width is 40"):
        make_char_model(tmp_path, layers=1, width=40, seed=0)
