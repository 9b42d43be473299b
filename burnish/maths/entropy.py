"""Logprob of the chosen token and entropy of the distribution it was drawn from, in one pass over the logits."""

import torch
from torch import Tensor


def logprobs_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """([T], [T]) float32, nats, from logits [T, V] already divided by the temperature and targets [T].

    logprob = z_target - logsumexp(z); H = logsumexp(z) - sum softmax(z) z.
    """
    logits = logits.float()
    log_normalizer = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    shifted = logits - log_normalizer.unsqueeze(-1)
    probabilities = shifted.exp()
    # A forbidden token has logit -inf and probability 0; 0 * -inf would be NaN where its share of H is 0.
    entropy = -torch.where(probabilities > 0, probabilities * shifted, 0.0).sum(dim=-1)
    return chosen - log_normalizer, entropy
