"""pass@k without bias, and how sure one may be of its mean over prompts.

Pure Python: the numbers are few and evaluation must not depend on a tensor library for them.
"""

import random
from collections.abc import Sequence
from math import comb


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of `k` completions drawn from `samples`, `correct` of them right, is right.

    1 - C(n-c, k) / C(n, k), in exact integers. Source: Chen et al. 2021, "Codex" (arXiv:2107.03374), section 2.1.
    Raises ValueError unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not 0 <= correct <= samples:
        raise ValueError(f"correct must lie in [0, samples={samples}], got {correct}")
    if not 1 <= k <= samples:
        raise ValueError(f"k must lie in [1, samples={samples}], got {k}")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def bootstrap_interval(
    values: Sequence[float], resamples: int, seed: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`, one value a prompt.

    Prompts are resampled, not completions: completions of one prompt are not independent. The same seed gives the
    same interval. Source: Efron 1979, "Bootstrap methods". Raises ValueError when there is nothing to resample.
    """
    if not values or resamples < 1:
        raise ValueError(f"need at least one value and one resample, got {len(values)} and {resamples}")
    generator = random.Random(seed)
    count = len(values)
    means = sorted(sum(generator.choices(values, k=count)) / count for _ in range(resamples))
    tail = (1.0 - confidence) / 2.0
    low = means[min(int(tail * resamples), resamples - 1)]
    high = means[max(resamples - 1 - int(tail * resamples), 0)]
    return low, high
