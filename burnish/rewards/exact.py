"""Exact answers at the end of the response.

The rule: the response, without trailing spaces, punctuation and markup, must end with the answer. A number is
compared as a number with the last number, which must be the last thing said: talking on afterwards is wrong, and so
is a number cut off by another character. A text is compared, without case, spacing and punctuation around it, with
the last line, or with what follows the line's last `:` or `=`, or `answer is`.
"""

import re
import string
from decimal import Decimal, InvalidOperation

from burnish.contracts.config import ScorerConfig
from burnish.rewards.params import NoParams, read_params
from burnish.rewards.scorer import Sample
from burnish.rewards.worker import VerifierWorker

# What may follow an answer without making it wrong: full stops, quotes, brackets, markdown, end-of-sequence tokens.
_TRAILING, _TAGS = string.whitespace + ".!?,;:*_`\"'”’)]}$", ("<|im_end|>", "<|endoftext|>", "</s>", "</answer>")
_LEADING = string.whitespace + "*_`\"'“‘([{$"
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_LAST_NUMBER = re.compile(rf"(?<![\w.,])({_NUMBER})\Z")
_INTRODUCTION = re.compile(r"\A.*(?::|=|\banswer is\b|<answer>)", re.IGNORECASE)


class ExactScorer:
    """1 when the response ends with the answer, else 0; None for prompts without an exact answer."""

    def __init__(self, config: ScorerConfig, worker: VerifierWorker) -> None:
        read_params(config, NoParams)

    def score(self, sample: Sample) -> float | None:
        if sample.prompt.verifier.get("kind") != "exact":
            return None
        return float(ends_with_answer(sample.rollout.text, str(sample.prompt.verifier["answer"])))


def ends_with_answer(response: str, answer: str) -> bool:
    """Whether `response` ends with `answer` by the rule at the top of this file."""
    said = _without_trailer(response)
    number = _as_number(_bare(answer))
    if number is not None:
        # "5-2" ends with the number 2, not -2: a sign after a digit is an operator.
        found = _LAST_NUMBER.search(re.sub(r"(?<=[\d)])([-+])(?=\d)", r"\1 ", said))
        return found is not None and _as_number(found.group(1)) == number
    last_line = said.rsplit("\n", 1)[-1]
    wanted = _bare(answer)
    return wanted in {_bare(last_line), _bare(_INTRODUCTION.sub("", last_line))}


def _bare(text: str) -> str:
    return " ".join(_without_trailer(text).lstrip(_LEADING).casefold().split())


def _without_trailer(text: str) -> str:
    # Not a regular expression: on a long run of full stops in mid-text those take quadratic time.
    while (shorter := _without_tag(text.rstrip(_TRAILING))) != text:
        text = shorter
    return text


def _without_tag(text: str) -> str:
    for tag in _TAGS:
        text = text.removesuffix(tag)
    return text


def _as_number(text: str) -> Decimal | None:
    if not re.fullmatch(_NUMBER, text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
