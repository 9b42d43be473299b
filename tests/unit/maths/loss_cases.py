"""Two responses of three and four tokens, and every kind of policy loss configured for them."""

import pytest
import torch

from burnish.contracts.algorithm import LossConfig
from burnish.maths.aggregation import token_weights
from burnish.maths.losses import policy_loss

NEW = torch.tensor([[-1.0, -0.5, -2.0, 0.0], [-0.3, -1.2, -0.7, -0.9]])
OLD = torch.tensor([[-1.3, -0.5, -1.5, 0.0], [-0.6, -1.1, -0.7, -0.2]])
ROLLOUT = torch.tensor([[-1.35, -0.48, -1.5, 0.0], [-0.6, -1.9, -0.75, -0.2]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
ADVANTAGES = torch.tensor([[1.0], [-1.0]]).expand(2, 4)
KEPT = MASK == 1


def configured(surrogate, ratio="token", low=0.2, high=0.2, **extra):
    return LossConfig(surrogate=surrogate, ratio=ratio, clip_low=low, clip_high=high, **extra)


SETTINGS = {
    "clip": configured("clip"),
    "dual_clip": configured("clip", dual_clip=1.2),
    "cispo": configured("cispo"),
    "sapo": configured("sapo"),
    "reinforce": configured("reinforce"),
    "gmpo": configured("gmpo", low=0.25, high=0.25),
    "dppo_tv": configured("dppo_tv", low=0.2, high=0.1),
    "gspo": configured("clip", ratio="sequence", low=0.1, high=0.1),
    "cispo of sequences": configured("cispo", ratio="sequence", low=0.1, high=0.1),
    "sapo of sequences": configured("sapo", ratio="sequence"),
    "gmpo of sequences": configured("gmpo", ratio="sequence", low=0.1, high=0.1),
    "dppo_tv of sequences": configured("dppo_tv", ratio="sequence"),
}
every_loss = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def step_loss(settings, aggregation, new=NEW, old=OLD):
    """The two responses as one optimizer step, each its own prompt."""
    losses = policy_loss(new, old, ADVANTAGES, MASK, settings).loss
    return (token_weights(MASK, aggregation, limit=4, prompt_ids=["p", "q"]) * losses).sum()
