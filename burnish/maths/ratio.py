"""The importance ratio between two policies, in log space, at the level of the token or of the sequence.

Every surrogate takes the log-ratio made here, so that level and clipping are separate choices.
"""

import torch
from torch import Tensor

# Beyond this a log-ratio says no more than that the two policies disagree; its exponential would overflow.
MAX_LOG_RATIO = 20.0


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """logprobs - old_logprobs, clamped to +-20, of the shape of the inputs; beyond the clamp it has no gradient."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[N, R]: the response's mean log-ratio over its trained tokens, with the gradient of the token's own logprob.

    The token form sg[s] * pi / sg[pi] of GSPO (Zheng et al. 2025, arXiv:2507.18071): summed over a
    response its gradient is that of the sequence form, and it also takes advantages and weights that differ by token.
    """
    kept = mask != 0
    difference = torch.where(kept, (logprobs - old_logprobs).detach().double(), 0.0)
    mean = difference.sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True).clamp(min=1)
    return (mean.to(logprobs.dtype) + (logprobs - logprobs.detach())).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
