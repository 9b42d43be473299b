"""Records made by hand for the part of the update stage that needs no model."""

import itertools

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.loading import parse_config
from burnish.contracts.records import Logprob, Reward, Rollout


def update_config(**fields) -> UpdateConfig:
    return parse_config({"model": {"path": "char"}, "update": fields}).update


def rollout(sample_id, length=3, *, group=None, mask=None, tokens=None, finish="stop", sampler=None) -> Rollout:
    tokens = tokens or list(range(10, 10 + length))
    return Rollout(
        sample_id=sample_id,
        episode_id=sample_id,
        turn=0,
        group_id=group or sample_id[0],
        prompt_id="p",
        task="t",
        policy_version=0,
        input_ids=[1, 2],
        response_ids=tokens,
        loss_mask=mask or [1] * len(tokens),
        rollout_logprobs=sampler or [-1.0] * len(tokens),
        finish_reason=finish,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        seed=0,
        logprobs_mode="processed",
        prompt_text="",
        text="",
    )


def records(
    rewards, *, rollouts=None, old=-1.0, reference=None, values=None, flags=None, components=None
) -> tuple[list[Rollout], list[Reward], list[Logprob]]:
    """Rollouts `a0`, `a1`, ... of one group for each list in `rewards`, with rewards and logprobs.

    old, reference, values: one number for every token, or lists by sample_id.
    """
    names = [
        f"{letter}{number}" for letter, group in zip("abcdefgh", rewards, strict=False) for number in range(len(group))
    ]
    rows = rollouts or [rollout(name) for name in names]
    scores = dict(zip(names, itertools.chain(*rewards), strict=True))
    flags, components = flags or {}, components or {}

    def tokens(values, row):
        if values is None:
            return None
        return list(values[row.sample_id]) if isinstance(values, dict) else [values] * len(row.response_ids)

    return (
        rows,
        [
            Reward(name, components.get(name, {"exact": score}), score, flags.get(name, []))
            for name, score in scores.items()
        ],
        [
            Logprob(row.sample_id, tokens(old, row), tokens(reference, row), tokens(0.5, row), tokens(values, row))
            for row in rows
        ],
    )
