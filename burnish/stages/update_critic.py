"""The critic's part of an update: value losses on the policy's mini-batches, with an optimizer of its own.

Its targets are fixed before the first step, so a critic with layers of its own is trained before the policy is even
loaded. One that shares the policy's layers adds its loss to that of the policy's micro-batches.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import ContractError, StageError
from burnish.maths.aggregation import token_weights
from burnish.maths.losses import value_loss
from burnish.models.backbone import completion_states
from burnish.models.critic import Critic, CriticOrigin, find_critic, head_values, load_critic, save_critic
from burnish.models.grouping import PackedBatch
from burnish.models.logprobs import plan_batches
from burnish.models.probe import ModelTraits, probe_layers
from burnish.stages.entry import StageContext
from burnish.stages.trainer_state import CRITIC_MOMENTS_FILE, build_optimizer, load_moments, save_moments
from burnish.stages.update_batch import Batch

Figures = dict[str, float | None]


def input_critic(context: StageContext) -> CriticOrigin:
    """The critic that the logprob stage of this round took its values from."""
    config = context.config
    return find_critic(
        context.input_dir("critic"), context.input_dir("policy"), config.update.critic, config.model, context.workdir
    )


class ValueTrainer(ABC):
    """A module that ends in a value head, its optimizer and the settings of the update."""

    def __init__(
        self,
        module: torch.nn.Module,
        traits: ModelTraits,
        settings: UpdateConfig,
        *,
        dtype: torch.dtype = torch.float32,
        title: str = "update",
    ) -> None:
        """traits: of the layers under the head; dtype: their compute type; weights and moments are float32."""
        self.module = module
        self.traits = traits
        self.settings = settings
        self.optimizer = build_optimizer(module, betas=settings.betas, weight_decay=settings.weight_decay)
        self.dtype = dtype
        self.title = title
        self._tally = _Tally()

    @abstractmethod
    def values(self, pack: PackedBatch) -> Tensor:
        """[T] values of the tokens in `pack`, with gradients into the module."""

    @abstractmethod
    def save_artifact(self, folder: Path) -> None:
        """Write the critic's artifact."""

    def load_moments(self, trainer_state: Path) -> None:
        """Go on with the moments in the folder of a trainer state."""
        load_moments(trainer_state / CRITIC_MOMENTS_FILE, self.module, self.optimizer)

    def save(self, critic: Path, trainer_state: Path) -> None:
        """Write the critic's artifact, and its moments beside the policy's."""
        self.save_artifact(critic)
        save_moments(trainer_state / CRITIC_MOMENTS_FILE, self.module, self.optimizer)

    def train(self, batch: Batch, rows: list[int], rate: float) -> Figures:
        """`critic.epochs` optimizer steps on `rows` of `batch` at learning rate `rate`; returns their mean figures.

        The loss is a mean over the trained tokens of the mini-batch, however it is split. Raises StageError, with the
        weights as they were before the step, when the loss or its gradient is not finite.
        """
        device = self.traits.device
        mini = batch.take(rows, device)
        if not mini.mask.any():
            return {}
        weights = token_weights(mini.mask, "token-mean")
        packs = plan_batches(
            self.traits,
            mini.rollouts,
            token_budget=self.settings.token_budget,
            share_prompt=self.settings.share_prompt,
        )
        for _ in range(self.settings.critic.epochs):
            for pack in packs:
                self.loss(mini.take(pack.order, device), weights[pack.order], self.values(pack)).backward()
            self.apply(rate)
        return self.figures()

    def loss(self, micro: Batch, weights: Tensor, values: Tensor) -> Tensor:
        """Weighted value loss of `values` [T], the tokens of `micro`'s rows one after the other; weights: [n, R]."""
        if micro.values is None or micro.returns is None:
            raise ContractError(
                "update: the batch has no critic values; run logprob with update.advantage.estimator=gae"
            )
        tensors = (micro.values, micro.returns, micro.mask, weights)
        old, returns, mask, weights = (each[micro.inside] for each in tensors)
        losses = value_loss(values, old, returns, self.settings.critic.clip)
        loss = (weights * losses).sum()
        _require_finite("value loss", loss.item(), self.title)
        self._tally.loss += loss.item()
        self._tally.clipped += float((losses > value_loss(values, old, returns, 0.0))[mask].sum())
        self._tally.tokens += float(mask.sum())
        return loss

    def apply(self, rate: float) -> None:
        """Clip the gradient that is there and let the optimizer move the module."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.settings.max_grad_norm))
        _require_finite("critic's gradient norm", norm, self.title)
        self._tally.norms.append(norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def figures(self) -> Figures:
        """Means over the optimizer steps since the last call."""
        tally, self._tally = self._tally, _Tally()
        return {
            "value_loss": tally.loss / len(tally.norms),
            "value_clip_fraction": tally.clipped / tally.tokens if tally.tokens else None,
            "critic_grad_norm": sum(tally.norms) / len(tally.norms),
        }


class CriticTrainer(ValueTrainer):
    """A critic with layers of its own."""

    def __init__(self, critic: Critic, settings: UpdateConfig, *, dtype: torch.dtype, title: str = "update") -> None:
        super().__init__(critic, probe_layers(critic.layers), settings, dtype=dtype, title=title)
        self.critic = critic

    @classmethod
    def open(cls, context: StageContext, origin: CriticOrigin, device: torch.device) -> "CriticTrainer":
        """The critic of `origin` with the moments of the input trainer state."""
        config = context.config
        critic = load_critic(origin, config.model, device)
        dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
        trainer = cls(critic, config.update, dtype=dtype, title=context.title)
        trainer.load_moments(context.input_dir("trainer_state"))
        return trainer

    def values(self, pack: PackedBatch) -> Tensor:
        found: Tensor = self.critic(pack, self.dtype)
        return found

    def save_artifact(self, folder: Path) -> None:
        save_critic(folder, self.critic.head, self.critic.layers)


class SharedCriticTrainer(ValueTrainer):
    """A value head on the policy's layers; `train` moves the head alone, `extra_loss` the layers too."""

    def __init__(
        self,
        head: torch.nn.Linear,
        policy: PreTrainedModel,
        traits: ModelTraits,
        settings: UpdateConfig,
        *,
        dtype: torch.dtype,
        title: str = "update",
    ) -> None:
        super().__init__(head, traits, settings, dtype=dtype, title=title)
        self.head = head
        self.policy = policy

    def values(self, pack: PackedBatch) -> Tensor:
        with torch.no_grad():
            states = completion_states(self.policy, pack, self.dtype)
        return head_values(self.head, states)

    def extra_loss(self, micro: Batch, weights: Tensor, states: Tensor) -> Tensor:
        """`critic.coef` times the value loss of a micro-batch of the policy, to be added to its loss.

        states: [T, D], the tokens of `micro`'s rows one after the other; weights: [n, R]. `apply` then moves the head.
        """
        return self.settings.critic.coef * self.loss(micro, weights, head_values(self.head, states))

    def save_artifact(self, folder: Path) -> None:
        save_critic(folder, self.head, None)


@dataclass
class _Tally:
    """Sums over the micro-batches and optimizer steps of a mini-batch."""

    loss: float = 0.0
    clipped: float = 0.0
    """Tokens whose loss the clip decided."""
    tokens: float = 0.0
    norms: list[float] = field(default_factory=list)
    """Gradient norm of each optimizer step."""


def _require_finite(what: str, value: float, title: str) -> None:
    if not math.isfinite(value):
        raise StageError(
            f"{title}: the {what} is {value}; the critic was not changed. Lower update.critic.learning_rate or look at "
            "the rewards of this round"
        )
