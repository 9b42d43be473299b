"""From components to one reward: gates, then a weighted sum, then a clip. Missing stays missing.

A component that is None drops out, it does not count as 0; with nothing left the reward is None.
"""

import math
from collections.abc import Mapping, Sequence

from burnish.contracts.config import ScorerConfig


def fuse(
    components: Mapping[str, float | None],
    scorers: Sequence[ScorerConfig],
    *,
    penalty: float = 0.0,
    clip: float | None = None,
) -> float | None:
    """The weighted sum of what `scorers` found, plus `penalty`, clipped to [-clip, clip].

    0 when a gate's score is 0. None when no scorer with a weight has a score: a penalty alone is no verdict.
    """
    known = {scorer.name: _finite(components.get(scorer.name)) for scorer in scorers}
    if any(scorer.gate and known[scorer.name] == 0 for scorer in scorers):
        return 0.0
    terms = [scorer.weight * score for scorer in scorers if scorer.weight and (score := known[scorer.name]) is not None]
    if not terms:
        return None
    total = math.fsum([*terms, penalty])
    return total if clip is None else max(-clip, min(clip, total))


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None
