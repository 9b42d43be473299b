"""The critic's part of an update: value losses on the policy's mini-batches, with an optimizer of its own.

Its targets are fixed before the first step, so a critic with layers of its own is trained before the policy is even
loaded. One that shares the policy's layers adds its loss to that of the policy's micro-batches.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import ContractError, StageError
from burnish.maths.aggregation import token_weights
from burnish.maths.losses import value_loss
from burnish.maths.returns import explained_variance
from burnish.models.critic import Critic, CriticOrigin, find_critic, head_values, load_critic, save_critic
from burnish.models.logprobs import plan_batches
from burnish.models.probe import ModelTraits, probe_layers
from burnish.stages.entry import StageContext
from burnish.stages.trainer_state import CRITIC_MOMENTS_FILE, build_optimizer, load_moments, save_moments
from burnish.stages.update_batch import Batch


def input_critic(context: StageContext) -> CriticOrigin:
    """The critic that the logprob stage of this round took its values from."""
    config = context.config
    return find_critic(
        context.input_dir("critic"), context.input_dir("policy"), config.update.critic, config.model, context.workdir
    )


def critic_figures(batch: Batch) -> dict[str, float | None]:
    """How well the values from before the update foretold the returns. Raises ContractError without values."""
    values, returns = _targets(batch)
    kept = batch.mask
    return {
        "explained_variance": explained_variance(values, returns, kept),
        "value_mean": float(values[kept].mean()) if kept.any() else None,
        "return_mean": float(returns[kept].mean()) if kept.any() else None,
    }


class CriticTrainer:
    """A critic with layers of its own, its optimizer and the settings of the update."""

    def __init__(
        self,
        critic: Critic,
        optimizer: torch.optim.Optimizer,
        settings: UpdateConfig,
        *,
        dtype: torch.dtype = torch.float32,
        title: str = "update",
    ) -> None:
        """dtype: compute type of the layers; weights, gradients and moments are float32."""
        self.critic = critic
        self.optimizer = optimizer
        self.settings = settings
        self.dtype = dtype
        self.title = title
        self.traits: ModelTraits = probe_layers(critic.layers)

    @classmethod
    def open(cls, context: StageContext, origin: CriticOrigin, device: torch.device) -> "CriticTrainer":
        """The critic of `origin` with the moments of the input trainer state."""
        settings, model = context.config.update, context.config.model
        critic = load_critic(origin, model, device)
        optimizer = build_optimizer(critic, betas=settings.betas, weight_decay=settings.weight_decay)
        load_moments(context.input_dir("trainer_state") / CRITIC_MOMENTS_FILE, critic, optimizer)
        dtype = torch.bfloat16 if model.dtype == "bfloat16" else torch.float32
        return cls(critic, optimizer, settings, dtype=dtype, title=context.title)

    def train(self, batch: Batch, rows: list[int], rate: float) -> dict[str, float | None]:
        """`critic.epochs` optimizer steps on `rows` of `batch` at learning rate `rate`; returns their mean figures.

        The loss is a mean over the trained tokens of the mini-batch, however it is split. Raises StageError, with the
        weights as they were before the step, when the loss or its gradient is not finite.
        """
        if not rows:
            return {}
        part = batch.take(rows, self.critic.layers.device)
        weights = token_weights(part.mask, "token-mean")
        packs = plan_batches(
            self.traits,
            part.rollouts,
            token_budget=self.settings.token_budget,
            share_prompt=self.settings.share_prompt,
        )
        tally = ValueTally()
        for _ in range(self.settings.critic.epochs):
            for pack in packs:
                values = self.critic(pack, self.dtype)
                loss = tally.loss(part.take(pack.order), weights[pack.order], values, self.settings.critic.clip)
                _require_finite("value loss", loss.item(), self.title)
                loss.backward()
            tally.norms.append(apply_gradient(self.critic, self.optimizer, rate, self.settings, self.title))
        return tally.figures() | critic_figures(part)

    def save(self, critic: Path, trainer_state: Path) -> None:
        """Write the critic's artifact, and its moments beside the policy's."""
        save_critic(critic, self.critic.head, self.critic.layers)
        save_moments(trainer_state / CRITIC_MOMENTS_FILE, self.critic, self.optimizer)


class SharedCritic:
    """A value head on the policy's layers: the policy's trainer calls it with the states of each micro-batch."""

    def __init__(
        self, head: torch.nn.Linear, optimizer: torch.optim.Optimizer, settings: UpdateConfig, title: str = "update"
    ) -> None:
        self.head = head
        self.optimizer = optimizer
        self.settings = settings
        self.title = title
        self.tally = ValueTally()

    @classmethod
    def open(cls, context: StageContext, origin: CriticOrigin, device: torch.device) -> "SharedCritic":
        """The head of `origin` with the moments of the input trainer state."""
        settings = context.config.update
        head = origin.head.to(device)
        optimizer = build_optimizer(head, betas=settings.betas, weight_decay=settings.weight_decay)
        load_moments(context.input_dir("trainer_state") / CRITIC_MOMENTS_FILE, head, optimizer)
        return cls(head, optimizer, settings, context.title)

    def loss(self, part: Batch, weights: Tensor, states: Tensor) -> Tensor:
        """`critic.coef` times the value loss of a micro-batch, to be added to the policy's.

        part: its rows, in the order in which states [T, D] hold their tokens; weights: [rows, R] token means.
        """
        values = head_values(self.head, states)
        return self.settings.critic.coef * self.tally.loss(part, weights, values, self.settings.critic.clip)

    def apply(self, rate: float) -> dict[str, float | None]:
        """Move the head by the gradient that is there; returns the figures of the step."""
        self.tally.norms.append(apply_gradient(self.head, self.optimizer, rate, self.settings, self.title))
        figures, self.tally = self.tally.figures(), ValueTally()
        return figures

    def save(self, critic: Path, trainer_state: Path) -> None:
        """Write the critic's artifact, and its moments beside the policy's."""
        save_critic(critic, self.head, None)
        save_moments(trainer_state / CRITIC_MOMENTS_FILE, self.head, self.optimizer)


@dataclass
class ValueTally:
    """What the micro-batches of a mini-batch add up to."""

    losses: list[float] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Gradient norm of each optimizer step."""

    def loss(self, part: Batch, weights: Tensor, values: Tensor, clip: float) -> Tensor:
        """Weighted value loss of `values` [T], the tokens of `part`'s rows one after the other."""
        inside = part.inside
        old, returns = (tokens[inside].to(values.device) for tokens in _targets(part))
        mask, weights = part.mask[inside].to(values.device), weights[inside].to(values.device)
        losses = value_loss(values, old, returns, clip)
        loss = (weights * losses).sum()
        self.losses.append(loss.item())
        self.clipped.append((losses > value_loss(values, old, returns, 0.0)).detach()[mask].float().cpu())
        return loss

    def figures(self) -> dict[str, float | None]:
        """Means over the optimizer steps."""
        clipped = torch.cat(self.clipped)
        return {
            "value_loss": sum(self.losses) / len(self.norms),
            "value_clip_fraction": float(clipped.mean()) if len(clipped) else None,
            "critic_grad_norm": sum(self.norms) / len(self.norms),
        }


def apply_gradient(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, rate: float, settings: UpdateConfig, title: str
) -> float:
    """Clip the gradient and let the optimizer move the weights; returns the norm before clipping."""
    norm = float(torch.nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm))
    _require_finite("critic's gradient norm", norm, title)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def _targets(batch: Batch) -> tuple[Tensor, Tensor]:
    if batch.values is None or batch.returns is None:
        raise ContractError(
            "update: the batch has no values of a critic; run logprob with update.advantage.estimator=gae"
        )
    return batch.values, batch.returns


def _require_finite(what: str, value: float, title: str) -> None:
    if not math.isfinite(value):
        raise StageError(
            f"{title}: the {what} is {value}; the critic was not changed. Lower update.critic.learning_rate or look at "
            "the rewards of this round"
        )
