"""From token losses to one number: every way of averaging is a weight per token, and the loss is their weighted sum.

Weights are computed once over the whole optimizer step, so that any split into micro-batches, or over ranks, adds
up to the same loss and the same gradient.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def token_weights(mask: Tensor, aggregation: Aggregation, limit: int | None = None) -> Tensor:
    """Weights w such that the step's loss is sum(w * token_loss); [N, R] float32, 0 where `mask` is 0.

    mask: [N, R] of the whole optimizer step, 1 on the tokens that are trained; L_i is its sum over row i, and B the
    number of rows with L_i > 0: a fully masked row leaves every denominator.

    token-mean: 1 / sum_i L_i (DAPO, arXiv:2503.14476). seq-mean-token-mean: 1 / (B L_i) (GRPO, arXiv:2402.03300).
    seq-mean-token-sum-norm: 1 / (B limit), limit being the longest allowed completion (Dr. GRPO, arXiv:2503.20783).
    """
    kept = (mask != 0).double()
    lengths = kept.sum(dim=1, keepdim=True)
    rows = (lengths > 0).sum().clamp(min=1)
    if aggregation == "token-mean":
        denominator = kept.sum().clamp(min=1)
    elif aggregation == "seq-mean-token-mean":
        denominator = rows * lengths.clamp(min=1)
    elif limit is None or limit < 1:
        raise ValueError(f"seq-mean-token-sum-norm divides by the completion limit; got {limit}")
    else:
        denominator = rows.double() * limit
    return (kept / denominator).to(torch.float32)
