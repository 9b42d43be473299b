import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.report.tokens import read_token_texts, split_text


def write(path, tree):
    path.write_text(json.dumps(tree), "utf-8")
    return path


def test_the_byte_alphabet_gives_back_spaces_newlines_and_umlauts(tmp_path):
    tree = {
        "model": {"vocab": {"ĠThe": 0, "Ċ": 1, "Ã¼": 2, "a": 3}},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]},
        "added_tokens": [{"id": 9, "content": "<|im_end|>"}],
    }
    texts = read_token_texts(write(tmp_path / "tokenizer.json", tree))
    assert split_text([0, 1, 2, 3, 9], texts) == [" The", "\n", "ü", "a", "<|im_end|>"]


def test_metaspace_and_byte_fallback_are_understood(tmp_path):
    tree = {"model": {"vocab": [["\u2581Hi", -1.0], ["<0xC3>", -2.0], ["<0xBC>", -3.0]]}}
    texts = read_token_texts(write(tmp_path / "tokenizer.json", tree))
    assert split_text([0, 1, 2], texts) == [" Hi", "", "ü"]


def test_an_unknown_id_shows_as_its_number():
    assert split_text([5], {}) == ["<5>"]


@pytest.mark.parametrize("tree", [{}, {"model": {}}, [], {"model": None}])
def test_a_file_without_a_vocabulary_is_one_clear_error(tmp_path, tree):
    with pytest.raises(ValueError, match=r"tokenizer\.json: no vocabulary"):
        read_token_texts(write(tmp_path / "tokenizer.json", tree))


@given(st.text(min_size=1), st.data())
def test_tokens_that_cut_characters_still_spell_the_text(text, data):
    raw = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)), max_size=8)) | {len(raw)})
    pieces = [raw[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    split = split_text(list(range(len(pieces))), dict(enumerate(pieces)))
    assert len(split) == len(pieces)
    assert "".join(split) == raw.decode()


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=8))
def test_bytes_that_are_no_text_do_not_stop_the_report(pieces):
    assert len(split_text(list(range(len(pieces))), dict(enumerate(pieces)))) == len(pieces)
