import pytest

from burnish.contracts.errors import ContractError
from burnish.contracts.records import Prompt
from burnish.models.char import char_tokenizer
from burnish.models.chat import render_demonstration, render_prompt

CHAT = [{"role": "user", "content": "hi"}]
# As SmolLM2's: the end token is also the padding token, and a newline follows it.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '<eos>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@pytest.fixture
def tokenizer():
    tokenizer = char_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prompt(messages=None, text=None, demonstration=None):
    return Prompt("p1", "t", "sft", messages, text, {}, demonstration)


def test_a_chat_is_rendered_up_to_where_the_assistant_starts(tokenizer):
    assert tokenizer.decode(render_prompt(tokenizer, prompt(CHAT))) == "user:hi<eos>\nassistant:"


def test_raw_text_is_taken_as_it_is(tokenizer):
    assert tokenizer.decode(render_prompt(tokenizer, prompt(text="3+4="))) == "3+4="


def test_a_demonstration_ends_with_the_end_token_and_nothing_behind_it(tokenizer):
    eos = tokenizer.eos_token_id
    input_ids, response_ids = render_demonstration(tokenizer, prompt(CHAT, demonstration="yo"), frozenset({eos}))
    assert input_ids == render_prompt(tokenizer, prompt(CHAT))
    assert tokenizer.decode(response_ids) == "yo<eos>"
    assert response_ids[-1] == eos == tokenizer.pad_token_id


def test_raw_text_demonstrations_get_their_end_token_too(tokenizer):
    eos = frozenset({tokenizer.eos_token_id})
    _, response_ids = render_demonstration(tokenizer, prompt(text="3+4=", demonstration="7"), eos)
    assert response_ids == [*tokenizer("7")["input_ids"], tokenizer.eos_token_id]


def test_a_template_without_an_end_token_gets_one(tokenizer):
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "")
    eos = frozenset({tokenizer.eos_token_id})
    _, response_ids = render_demonstration(tokenizer, prompt(CHAT, demonstration="yo"), eos)
    assert response_ids[-1] == tokenizer.eos_token_id
    assert response_ids.count(tokenizer.eos_token_id) == 1


def test_the_end_of_a_turn_may_be_another_token_than_the_tokenizers(tokenizer):
    newline = tokenizer.convert_tokens_to_ids("\n")
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "")
    _, response_ids = render_demonstration(tokenizer, prompt(CHAT, demonstration="yo"), frozenset({newline}))
    assert tokenizer.decode(response_ids) == "yo\n"


def test_a_template_that_rewrites_the_prompt_is_refused(tokenizer):
    tokenizer.chat_template = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(ContractError, match="p1: the chat template rewrites"):
        render_demonstration(tokenizer, prompt(CHAT, demonstration="yo"), frozenset({1}))


def test_a_chat_for_a_model_without_a_template_is_refused():
    with pytest.raises(ContractError, match="no chat template"):
        render_prompt(char_tokenizer(), prompt(CHAT))


def test_an_empty_prompt_is_refused(tokenizer):
    with pytest.raises(ContractError, match="empty"):
        render_prompt(tokenizer, prompt(text=""))


def test_a_row_without_demonstration_is_refused(tokenizer):
    with pytest.raises(ContractError, match="no demonstration"):
        render_demonstration(tokenizer, prompt(text="3+4="), frozenset({1}))
