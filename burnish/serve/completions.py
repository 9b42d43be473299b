"""OpenAI's completion request as far as training needs it: token ids in, token ids and their logprobs out.

What would change the distribution behind the trainer's back, such as top_p or a penalty, is refused, not ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.http_server import HttpError

_TokenId = Annotated[int, Field(ge=0)]


class CompletionRequest(BaseModel):
    """The fields that are taken; any other one is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the policy's manifest."""
    prompt: list[_TokenId] = Field(min_length=1)
    max_tokens: int = Field(16, ge=0)
    """0 only with `echo`: the prompt is scored at temperature 1, and nothing drawn."""
    temperature: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)
    """Choice i of `n` is drawn with seed + i."""
    n: int = Field(1, ge=1, le=1024)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=1)
    """Always those of the drawn tokens, and of no others."""
    return_token_ids: bool = True
    """Always on: there is no text."""
    stream: Literal[False] = False
    top_p: float = Field(1.0, ge=1, le=1)
    user: str | None = Field(None, max_length=200)
    """The holder that asks; it holds the policy for as long as it does."""

    def check(self, max_length: int) -> None:
        """Raises HttpError for what makes no sense or is too long for the engine."""
        if self.echo != (self.max_tokens == 0) or (self.echo and (self.n > 1 or len(self.prompt) < 2)):
            raise HttpError(400, "echo scores a prompt of at least two tokens: it needs max_tokens 0 and n 1")
        # An engine that scores draws at least one token more.
        length = len(self.prompt) + max(self.max_tokens, 1)
        if length > max_length:
            raise HttpError(400, f"prompt and completion have {length} tokens; this server takes {max_length}")

    @property
    def questions(self) -> list[dict[str, Any]]:
        """What the engine is asked, one question a choice."""
        if self.echo:
            return [{"input_ids": self.prompt[:1], "response_ids": self.prompt[1:]}]
        shared = {"input_ids": self.prompt, "temperature": self.temperature, "max_new_tokens": self.max_tokens}
        return [{**shared, "seed": self.seed + index} for index in range(self.n)]

    def response(self, answers: list[dict[str, Any]], created: int) -> dict[str, Any]:
        """OpenAI's answer; `model` is the policy that drew it."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        drawn = 0 if self.echo else sum(len(choice["token_ids"]) for choice in choices)
        return {
            "id": f"cmpl-{self.model[:12]}-{self.seed}",
            "object": "text_completion",
            "created": created,
            "model": self.model,
            "choices": choices,
            "usage": {
                "prompt_tokens": len(self.prompt),
                "completion_tokens": drawn,
                "total_tokens": len(self.prompt) + drawn,
            },
        }

    def _choice(self, index: int, answer: dict[str, Any]) -> dict[str, Any]:
        if self.echo:
            token_ids, logprobs, reason = self.prompt, [None, *answer["scores"]], "length"
        else:
            drawn = answer["completion"]
            token_ids, logprobs, reason = drawn["response_ids"], drawn["logprobs"], drawn["finish_reason"]
        shown = {"tokens": [f"token_id:{token}" for token in token_ids], "token_logprobs": logprobs}
        return {
            "index": index,
            "text": "",
            "token_ids": token_ids,
            "logprobs": None if self.logprobs is None else shown,
            "finish_reason": reason,
        }


def parse_completion(raw: dict[str, Any]) -> CompletionRequest:
    """Raises HttpError naming the field."""
    try:
        return CompletionRequest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][:2])
        raise HttpError(400, f"{field}: {first['msg']}") from None
