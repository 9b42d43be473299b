"""From prompts to token ids: what the model reads, and which of a demonstration's tokens it is trained on.

A demonstration is tokenised behind its prompt's ids, so training and sampling see the very same context.
"""

from transformers import PreTrainedTokenizerBase

from burnish.contracts.errors import ContractError
from burnish.contracts.records import Prompt


def render_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Token ids [P] of the prompt, up to where the assistant starts.

    Raises ContractError: no chat template for `messages`, or nothing to read.
    """
    if prompt.messages is None:
        ids: list[int] = tokenizer(prompt.text)["input_ids"]
    else:
        ids = tokenizer(_chat(tokenizer, prompt, None), add_special_tokens=False)["input_ids"]
    if not ids:
        raise ContractError(f"prompt {prompt.prompt_id}: its text is empty; the model needs at least one token")
    return ids


def render_demonstration(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, eos_token_ids: frozenset[int]
) -> tuple[list[int], list[int]]:
    """(input_ids [P], response_ids [R]) of a prompt and its demonstration; only response_ids are trained on.

    The last response id is always an end-of-sequence token, also where that equals the padding token; what a
    template adds behind it is cut. Raises ContractError: no demonstration, or a template that rewrites the prompt.
    """
    if not prompt.demonstration:
        raise ContractError(f"prompt {prompt.prompt_id}: it has no demonstration")
    input_ids = render_prompt(tokenizer, prompt)
    response, ends = prompt.demonstration, []
    if prompt.messages is not None:
        before, whole = _chat(tokenizer, prompt, None), _chat(tokenizer, prompt, prompt.demonstration)
        if not whole.startswith(before):
            raise ContractError(
                f"prompt {prompt.prompt_id}: the chat template rewrites the conversation once it is answered, so the "
                "demonstration would be trained in a context that sampling never sees; use another template"
            )
        response = whole[len(before) :]
    response_ids: list[int] = tokenizer(response, add_special_tokens=False)["input_ids"]
    if prompt.messages is not None:
        ends = [index for index, token in enumerate(response_ids) if token in eos_token_ids]
    if ends:
        return input_ids, response_ids[: ends[-1] + 1]
    return input_ids, [*response_ids, _end(tokenizer, eos_token_ids)]


def _chat(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, answer: str | None) -> str:
    if not tokenizer.chat_template:
        raise ContractError(
            f"prompt {prompt.prompt_id} is a chat, but the model's tokenizer has no chat template; "
            "use prompts of raw text, or a chat model"
        )
    turns = list(prompt.messages or [])
    if answer is not None:
        turns.append({"role": "assistant", "content": answer})
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=answer is None))


def _end(tokenizer: PreTrainedTokenizerBase, eos_token_ids: frozenset[int]) -> int:
    return tokenizer.eos_token_id if tokenizer.eos_token_id in eos_token_ids else min(eos_token_ids)
