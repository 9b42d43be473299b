"""Logprob of the chosen token and entropy of the distribution it was drawn from, in one pass over the logits."""

import torch
from torch import Tensor


def logprobs_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """([T], [T]) float32, nats, from logits [T, V] already divided by the temperature and targets [T].

    logprob = z_target - logsumexp(z); H = logsumexp(z) - sum softmax(z) z = -sum p log p.
    """
    log_probabilities = torch.log_softmax(logits.float(), dim=-1)
    chosen = log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    # nansum: a forbidden token (logit -inf) gives 0 * -inf, and its share of the entropy is 0.
    entropy = -(log_probabilities.exp() * log_probabilities).nansum(dim=-1)
    return chosen, entropy
