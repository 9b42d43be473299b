"""Packing completions into rows for one forward pass: completions of the same prompt share it, as branches of a tree.

A shared row is the prompt followed by its completions; G completions of P + R tokens become P + G R tokens. Every
completion sees the prompt and itself, at the positions it would have alone, so the result is that of separate rows.
The last token of a completion predicts nothing that is asked for, so it is never an input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Completion(Protocol):
    """What packing needs of a rollout."""

    @property
    def input_ids(self) -> list[int]: ...
    @property
    def response_ids(self) -> list[int]: ...
    @property
    def temperature(self) -> float: ...


@dataclass(frozen=True)
class PackedBatch:
    """B rows of padded length L, holding T completion tokens; built on the CPU.

    Token fields follow `order`, and inside it the completion's own order, so that a flat [T] result splits by lengths.
    """

    input_ids: Tensor
    """[B, L] int64."""
    position_ids: Tensor
    """[B, L] int64; each completion continues at the prompt's length."""
    branches: Tensor | None
    """[B, L] int64: 0 on the prompt, k on completion k, -1 on padding. None: one completion a row, plain causal."""
    predictors: Tensor
    """[T] int64 into the flattened [B * L] rows: the position whose output predicts the token."""
    targets: Tensor
    """[T] int64: the token."""
    temperatures: Tensor
    """[T] float32: what the sampler divided the logits by."""
    order: list[int]
    """Index of each completion in the sequence that was packed."""
    lengths: list[int]
    """Tokens of each completion, in the same order; their sum is T."""

    def attention_mask(self, device: torch.device) -> Tensor | None:
        """[B, 1, L, L] float32, 0 where a query may look and -inf where not; None where plain causal is right."""
        if self.branches is None:
            return None
        branches = self.branches.to(device)
        length = branches.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        # Padding sees padding: a row without a single visible key would be NaN.
        visible = (branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None])
        mask = torch.zeros(visible.shape, device=device)
        return mask.masked_fill_(~(visible & causal), -torch.inf)[:, None]


@dataclass(frozen=True)
class _Row:
    members: list[int]
    """Indices of the completions that share this row's prompt."""
    length: int


def pack_completions(
    completions: Sequence[Completion],
    *,
    token_budget: int,
    batch_tokens: int | None = None,
    share_prompt: bool = True,
    attention_cost: float = 0.0,
) -> list[PackedBatch]:
    """Batches of at most `token_budget` padded tokens that together hold every completion once.

    A sequence longer than the budget gets a batch of its own. Rows are sorted by length, so padding is small.
    `batch_tokens` (default: the budget) is where a batch stops taking further rows.
    `attention_cost` is the price of one query-key pair over that of one token through the rest of the model: it keeps
    rows from growing to where the quadratic part costs more than the prompt that sharing saves.
    """
    batch_tokens = batch_tokens or token_budget
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, completion in enumerate(completions):
        # Equal tokens, not equal group ids, are what makes sharing exact: turns of one group have different prompts.
        key = tuple(completion.input_ids) if share_prompt else (index,)
        by_prompt.setdefault(key, []).append(index)
    rows = [row for members in by_prompt.values() for row in _split(completions, members, token_budget, attention_cost)]
    rows.sort(key=lambda row: -row.length)
    batches: list[list[_Row]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [_pack(completions, batch) for batch in batches]


def _split(
    completions: Sequence[Completion], members: list[int], token_budget: int, attention_cost: float
) -> list[_Row]:
    """Completions of one prompt as the cheapest number of rows that fit the budget."""
    prompt = len(completions[members[0]].input_ids)
    longest_first = sorted(members, key=lambda index: -len(completions[index].response_ids))
    best: tuple[float, list[_Row]] | None = None
    for count in range(1, len(members) + 1):
        # Dealing like cards keeps the rows about equally long.
        hands = [longest_first[start::count] for start in range(count)]
        rows = [_Row(hand, prompt + sum(len(completions[index].response_ids) - 1 for index in hand)) for hand in hands]
        if rows[0].length > token_budget and count < len(members):
            continue
        cost = sum(row.length + attention_cost * row.length**2 for row in rows)
        if best is None or cost < best[0]:
            best = (cost, rows)
    assert best is not None
    return best[1]


def _pack(completions: Sequence[Completion], rows: list[_Row]) -> PackedBatch:
    length = rows[0].length
    input_ids = torch.zeros(len(rows), length, dtype=torch.long)
    position_ids = torch.arange(length).repeat(len(rows), 1)
    branches = torch.full((len(rows), length), -1)
    predictors: list[int] = []
    targets: list[int] = []
    temperatures: list[float] = []
    order: list[int] = []
    lengths: list[int] = []
    for number, row in enumerate(rows):
        prompt = completions[row.members[0]].input_ids
        start = len(prompt)
        input_ids[number, :start] = torch.tensor(prompt)
        branches[number, :start] = 0
        for branch, index in enumerate(row.members, 1):
            response = completions[index].response_ids
            end = start + len(response) - 1
            input_ids[number, start:end] = torch.tensor(response[:-1], dtype=torch.long)
            position_ids[number, start:end] = torch.arange(len(prompt), len(prompt) + len(response) - 1)
            branches[number, start:end] = branch
            # The prompt's last position predicts the first token of every completion.
            first = number * length
            predictors += [first + len(prompt) - 1, *range(first + start, first + end)]
            targets += response
            temperatures += [completions[index].temperature] * len(response)
            order.append(index)
            lengths.append(len(response))
            start = end
    plain = all(len(row.members) == 1 for row in rows)
    return PackedBatch(
        input_ids,
        position_ids,
        None if plain else branches,
        torch.tensor(predictors),
        torch.tensor(targets),
        torch.tensor(temperatures, dtype=torch.float32),
        order,
        lengths,
    )
