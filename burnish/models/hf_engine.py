"""Sampling with plain transformers: a batched decode loop whose finished rows make room for the next request.

A prompt is run once for all its completions, rows of different lengths decode together, and the tokens of a request
depend on its seed and prompt alone.
"""

import inspect
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from burnish.contracts.errors import StageError
from burnish.contracts.records import FinishReason
from burnish.models.engine import Completion, Request, Sampling
from burnish.models.slot_cache import Prefix, SlotCache, split_prefixes

# Padded prompt tokens in one prefill.
_PREFILL_TOKENS = 2048
# The batch shrinks when less of it than this still decodes: copying the cache costs about one step.
_SHRINK_BELOW = 0.75


class HfEngine:
    """An Engine over a transformers model; `batch_size` sequences decode at once."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: frozenset[int], *, batch_size: int) -> None:
        if getattr(model.config, "sliding_window", None):
            raise StageError("rollout.engine is 'hf': it has no sliding-window attention; use `vllm` for this model")
        self._model = model
        self._eos_token_ids = eos_token_ids
        self._batch_size = batch_size

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, in the order in which they finish."""
        return _Decoding(self._model, self._eos_token_ids, self._batch_size, requests, sampling).run()

    @torch.inference_mode()
    def score(self, input_ids: list[int], response_ids: list[int]) -> list[float]:
        """[R] log softmax(logits), at temperature 1, of each response token after the prompt."""
        tokens = torch.tensor([[*input_ids, *response_ids]], device=self._model.device)
        kept = self._model(input_ids=tokens, use_cache=False, logits_to_keep=len(response_ids) + 1)
        logprobs = kept.logits[0, :-1].float().log_softmax(-1)
        scores: list[float] = logprobs.gather(1, tokens[0, len(input_ids) :, None])[:, 0].tolist()
        return scores


@dataclass
class _Row:
    """A request on its way in one slot."""

    request: Request
    uniforms: np.ndarray
    """[max_new_tokens] in [0, 1): the draw at each step, fixed before the first one."""
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.request.input_ids)

    def completion(self, finish_reason: FinishReason) -> Completion:
        return Completion(self.request.request_id, self.response_ids, self.logprobs, finish_reason)


class _Decoding:
    """The state of one `generate` call: requests that wait, slots that decode, prompts that were run."""

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_ids: frozenset[int],
        batch_size: int,
        requests: Sequence[Request],
        sampling: Sampling,
    ) -> None:
        self._model = model
        self._eos_token_ids = eos_token_ids
        self._sampling = sampling
        self._pending = deque(requests)
        self._waiting = Counter(tuple(request.input_ids) for request in requests)
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._rows: list[_Row | None] = [None] * min(batch_size, len(requests))
        self._cache: SlotCache | None = None
        # transformers 5.20 renamed the argument.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def run(self) -> Iterator[Completion]:
        while True:
            while self._pending and None in self._rows:
                yield from self._admit()
            if not any(self._rows):
                return
            if not self._pending:
                self._shrink()
            logits = self._step()
            live = [slot for slot, row in enumerate(self._rows) if row]
            yield from self._draw(live, logits[live] if len(live) < len(self._rows) else logits)

    def _admit(self) -> Iterator[Completion]:
        """Put waiting requests into the free slots and draw their first tokens from their prompts' logits."""
        free = [slot for slot, row in enumerate(self._rows) if row is None][: len(self._pending)]
        placed: dict[tuple[int, ...], list[int]] = {}
        logits = []
        for slot in free:
            request = self._pending.popleft()
            uniforms = np.random.Generator(np.random.PCG64(request.seed)).random(self._sampling.max_new_tokens)
            row = self._rows[slot] = _Row(request, uniforms)
            if row.prompt not in self._prefixes:
                self._prefill(row.prompt)
            placed.setdefault(row.prompt, []).append(slot)
            logits.append(self._prefixes[row.prompt].logits)
        for prompt, slots in placed.items():
            prefix = self._prefixes[prompt]
            self._cache = self._cache or SlotCache(len(self._rows), like=prefix)
            self._cache.place(slots, prefix)
            self._waiting[prompt] -= len(slots)
            if not self._waiting[prompt]:
                del self._prefixes[prompt]
        yield from self._draw(free, torch.stack(logits))

    def _prefill(self, prompt: tuple[int, ...]) -> None:
        """Run `prompt`, and with it the next waiting prompts that fit, padded on the right."""
        prompts = [prompt]
        longest = len(prompt)
        for request in self._pending:
            following = tuple(request.input_ids)
            if following in self._prefixes or following in prompts:
                continue
            longest = max(longest, len(following))
            if longest * (len(prompts) + 1) > _PREFILL_TOKENS:
                break
            prompts.append(following)
        longest = max(len(ids) for ids in prompts)
        device = self._model.device
        # Causal attention never looks right, so padding there needs no mask and changes nothing.
        input_ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in prompts], device=device)
        ends = torch.tensor([len(ids) - 1 for ids in prompts], device=device)
        kept, place = torch.unique(ends, return_inverse=True)
        cache = DynamicCache(config=self._model.config)
        output = self._model(input_ids=input_ids, use_cache=True, logits_to_keep=kept, **{self._cache_name: cache})
        logits = output.logits[torch.arange(len(prompts), device=device), place]
        for ids, prefix in zip(prompts, split_prefixes(cache, [len(ids) for ids in prompts], logits), strict=True):
            self._prefixes[ids] = prefix

    def _step(self) -> torch.Tensor:
        """Run the last token of every slot; returns logits [B, vocab]."""
        assert self._cache is not None
        last = [[row.response_ids[-1] if row else 0] for row in self._rows]
        mask = self._cache.open_position(self._model.dtype)
        output = self._model(
            input_ids=torch.tensor(last, device=self._model.device),
            attention_mask=mask,
            position_ids=self._cache.lengths[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._cache.close_position([slot for slot, row in enumerate(self._rows) if row])
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _draw(self, slots: list[int], logits: torch.Tensor) -> Iterator[Completion]:
        """Draw the next token of each of `slots` from `logits` [len(slots), vocab]; yields those that are done."""
        rows = [row for row in (self._rows[slot] for slot in slots) if row]
        uniforms = torch.tensor([row.uniforms[len(row.response_ids)] for row in rows], dtype=torch.float64)
        tokens, logprobs = draw_tokens(logits, uniforms.to(logits.device), self._sampling.temperature)
        finite = logprobs.isfinite().tolist()
        for slot, row, token, logprob, ok in zip(slots, rows, tokens.tolist(), logprobs.tolist(), finite, strict=True):
            row.response_ids.append(token)
            row.logprobs.append(logprob)
            reason: FinishReason | None = None
            if not ok:
                reason = "abort"
            elif token in self._eos_token_ids:
                reason = "stop"
            elif len(row.response_ids) == self._sampling.max_new_tokens:
                reason = "length"
            if reason:
                self._rows[slot] = None
                yield row.completion(reason)

    def _shrink(self) -> None:
        """Drop the empty slots once they are many enough to pay for the copy."""
        assert self._cache is not None
        live = [slot for slot, row in enumerate(self._rows) if row]
        if len(live) < _SHRINK_BELOW * len(self._rows):
            self._cache.keep(live)
            self._rows = [self._rows[slot] for slot in live]


def draw_tokens(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse-CDF sampling: tokens [B] and their logprobs [B] from `logits` [B, vocab] and `uniforms` [B] in [0, 1).

    Logprobs are log softmax(logits / temperature) in float32; the CDF is summed in float64, so the token is the
    one whose interval holds the uniform. A row with a non-finite logit gets a non-finite logprob.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    cdf = logprobs.double().exp_().cumsum(dim=-1)
    # The sum is 1 up to rounding; scaling by it keeps the last token's interval whole.
    targets = uniforms[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]
