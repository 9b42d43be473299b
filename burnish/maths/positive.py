"""Making rare successes count: more weight for what went well, fewer and safer pushes against what did not.

Every choice is made over the whole optimizer step or inside a group, never inside a micro-batch.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def amplify_positive(advantages: Tensor, factor: float) -> Tensor:
    """Positive advantages times `factor`, the others as they are; any shape."""
    return torch.where(advantages > 0, advantages * factor, advantages)


def negative_keep(
    advantages: Tensor, group_ids: Sequence[str], sample_ids: Sequence[str], share: float, seed: int
) -> Tensor:
    """[N] bool: False for the negative samples that are left out so that `share` of them remain in each group.

    The choice follows from the seed and the sample's id, not from the order of rows. The number is rounded, but a
    group keeps at least one negative sample unless `share` is 0.
    """
    negative: dict[str, list[int]] = {}
    for row, advantage in enumerate(advantages.tolist()):
        if advantage < 0:
            negative.setdefault(group_ids[row], []).append(row)
    keep = torch.ones(len(advantages), dtype=torch.bool, device=advantages.device)
    for rows in negative.values():
        count = max(int(share * len(rows) + 0.5), 1) if share else 0
        rows.sort(key=lambda row: hashlib.sha256(f"{seed}/{sample_ids[row]}".encode()).digest())
        keep[rows[count:]] = False
    return keep


def negative_floor_mask(mask: Tensor, logprobs: Tensor, advantages: Tensor, floor: float) -> Tensor:
    """[N, R] bool: `mask` without the tokens of negative advantage whose probability is below `floor`.

    logprobs: [N, R], those at the start of the update, so that the mask holds for all its steps; advantages: [N, R].
    """
    return (mask != 0) & ~((advantages < 0) & (logprobs.exp() < floor))


def positive_nll_weights(advantages: Tensor, mask: Tensor) -> Tensor:
    """[N, R] float32 weights w such that sum(w * -logprob) is the mean over the trained tokens with advantage > 0.

    Both inputs are [N, R] of the whole optimizer step; all 0 without such a token. Source: VAPO, Yue et al. 2025
    (arXiv:2504.05118).
    """
    kept = ((mask != 0) & (advantages > 0)).double()
    return (kept / kept.sum().clamp(min=1)).float()
