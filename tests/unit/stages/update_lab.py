"""The policy's optimizer step without stages around it: gradients are read off plain gradient descent."""

import dataclasses

import torch
from rl_inputs import config_of, make_workplace, read_logprobs, read_rollouts

from burnish.contracts.records import Reward
from burnish.models.char import make_char_model
from burnish.models.load import load_policy
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.update_round import build_batch
from burnish.stages.update_step import PolicyTrainer


class Lab:
    """Records of a policy that has moved on since: ratios, KL and values all have something to say."""

    def __init__(self, path) -> None:
        work = make_workplace(path)
        make_char_model(work.folder("reference"), layers=1, width=32, seed=4)
        work.logprob(config_of(kl={"coef": 0.1}))
        chance = torch.Generator().manual_seed(1)

        def noise(count, size):
            return (size * torch.randn(count, generator=chance)).tolist()

        self.rollouts = [
            dataclasses.replace(
                row,
                rollout_logprobs=[
                    old + off for old, off in zip(row.rollout_logprobs, noise(len(row.response_ids), 0.05), strict=True)
                ],
            )
            for row in read_rollouts(work)
        ]
        self.logprobs = [
            dataclasses.replace(row, values=noise(len(row.old_logprobs), 0.3)) for row in read_logprobs(work)
        ]
        self.rewards = [
            Reward(row.sample_id, {"exact": (score := float(row.sample_id[-1]))}, score) for row in self.rollouts
        ]
        self.model = load_policy(work.path / "policy").model
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=chance)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def batch(self, **fields):
        settings = config_of(**fields).update
        return build_batch(self.rollouts, self.rewards, self.logprobs, settings, kl_coef=settings.kl.coef or 0.0)[0]

    def trainer(self, *, clip_factor=1.0, **fields):
        self.model.load_state_dict(self.weights)
        settings = config_of(**{"max_grad_norm": 1e9, **fields}).update
        policy = ParallelPolicy(self.model, Ranks(), device=torch.device("cpu"), dtype=torch.float32)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        return PolicyTrainer(policy, optimizer, settings, completion_limit=8, clip_factor=clip_factor)

    def step(self, batch, *, clip_factor=1.0, measure_signs=False, **fields):
        """Figures of one step on all of `batch`, and its gradient by name of the weight."""
        trainer = self.trainer(clip_factor=clip_factor, **fields)
        rows = range(len(batch.rollouts))
        coef = trainer.settings.kl.coef or 0.0
        figures = trainer.step(batch, rows, rate=1.0, kl_coef=coef, measure_signs=measure_signs)
        moved = dict(self.model.named_parameters())
        return figures, {name: (self.weights[name] - moved[name]).detach() for name in moved}


def norm(gradient) -> float:
    return float(torch.stack([value.norm() for value in gradient.values()]).norm())


def assert_same_gradient(found, expected) -> None:
    scale = norm(expected)
    for name, value in expected.items():
        difference = float((found[name] - value).abs().max())
        assert difference <= 2e-5 * max(scale, 0.1), (name, difference)
