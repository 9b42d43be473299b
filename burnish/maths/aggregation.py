"""From token losses to one number: every way of averaging is a weight per token, and the loss is their weighted sum.

Weights are computed once over the whole optimizer step, so that any split into micro-batches, or over ranks, adds
up to the same loss and the same gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.contracts.algorithm import Aggregation


def token_weights(
    mask: Tensor, aggregation: Aggregation, limit: int | None = None, prompt_ids: Sequence[str] | None = None
) -> Tensor:
    """Weights w such that the step's loss is sum(w * token_loss); [N, R] float32, 0 where `mask` is 0.

    mask: [N, R] of the whole optimizer step, 1 on the tokens that are trained; L_i is its sum over row i, and B the
    number of rows with L_i > 0: a fully masked row leaves every denominator.

    token-mean: 1 / sum_i L_i (DAPO, arXiv:2503.14476). seq-mean-token-mean: 1 / (B L_i) (GRPO, arXiv:2402.03300).
    seq-mean-token-sum: 1 / B. seq-mean-token-sum-norm: 1 / (B limit), limit being the longest allowed completion
    (Dr. GRPO, arXiv:2503.20783). prompt-mean: 1 / (P T) with T the trained tokens of the row's prompt and P the
    prompts that have any; prompt_ids are the N rows' group ids (as in SkyRL).
    """
    kept = (mask != 0).double()
    lengths = kept.sum(dim=1, keepdim=True)
    rows = (lengths > 0).sum().clamp(min=1).double()
    match aggregation:
        case "token-mean":
            denominator = kept.sum().clamp(min=1)
        case "seq-mean-token-mean":
            denominator = rows * lengths.clamp(min=1)
        case "seq-mean-token-sum":
            denominator = rows
        case "seq-mean-token-sum-norm":
            if limit is None or limit < 1:
                raise ValueError(f"seq-mean-token-sum-norm divides by the completion limit; got {limit}")
            denominator = rows * limit
        case "prompt-mean":
            if prompt_ids is None or len(prompt_ids) != len(mask):
                raise ValueError(f"prompt-mean needs the prompt of each of the {len(mask)} rows; got {prompt_ids}")
            denominator = _prompt_denominators(lengths, prompt_ids)
    return (kept / denominator).to(torch.float32)


def _prompt_denominators(lengths: Tensor, prompt_ids: Sequence[str]) -> Tensor:
    """[N, 1]: prompts with trained tokens x trained tokens of the row's prompt, at least 1."""
    numbers = {prompt_id: number for number, prompt_id in enumerate(dict.fromkeys(prompt_ids))}
    index = torch.tensor([numbers[prompt_id] for prompt_id in prompt_ids], dtype=torch.long, device=lengths.device)
    tokens = lengths.new_zeros(len(numbers)).index_add_(0, index, lengths[:, 0])
    return ((tokens > 0).sum() * tokens[index]).clamp(min=1).unsqueeze(1)
