"""Soft overlong penalty (DAPO): a completion near the length limit loses a little reward instead of being cut off.

Pure Python, so that the reward stage, which has no torch, can use it.
"""


def soft_overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Penalty in [-1, 0] for a completion of `length` tokens.

    0 up to `limit - buffer`, then linear in the length, -1 from `limit` on. A buffer of 0 turns it off.
    Source: Yu et al. 2025, "DAPO" (arXiv:2503.14476), equation 13. Raises ValueError for a buffer outside [0, limit].
    """
    if not 0 <= buffer <= limit:
        raise ValueError(f"buffer must lie in [0, limit={limit}], got {buffer}")
    if buffer == 0:
        return 0.0
    exceeded = length - (limit - buffer)
    return -min(max(exceeded / buffer, 0.0), 1.0) + 0.0
