"""The critic's part of an update: value losses on the policy's mini-batches, with an optimizer of its own.

Its targets are fixed before the first step, so a critic with layers of its own is trained before the policy is even
loaded. One that shares the policy's layers adds its loss to that of the policy's micro-batches.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import ConfigError, ContractError, StageError
from burnish.maths.aggregation import token_weights
from burnish.maths.losses import value_loss
from burnish.models.backbone import completion_states
from burnish.models.critic import Critic, CriticOrigin, find_critic, head_values, load_critic, save_critic
from burnish.models.grouping import PackedBatch
from burnish.models.parallel import ParallelPolicy, Ranks, spread, whole_weights
from burnish.models.probe import ModelTraits, probe_layers
from burnish.stages.entry import StageContext
from burnish.stages.trainer_state import CRITIC_MOMENTS_FILE, build_optimizer, load_moments, save_moments
from burnish.stages.update_batch import Batch
from burnish.stages.update_plan import Plan
from burnish.stages.update_step import micro_batches

Figures = dict[str, float | None]


def input_critic(context: StageContext) -> CriticOrigin:
    """The critic that the logprob stage of this round took its values from."""
    config = context.config
    return find_critic(
        context.input_dir("critic"), context.input_dir("policy"), config.update.critic, config.model, context.workdir
    )


def train_critic(
    context: StageContext,
    origin: CriticOrigin,
    batch: Batch,
    mini_batches: Iterable[list[int]],
    plan: Plan,
    ranks: Ranks,
    device: torch.device,
) -> list[Figures]:
    """Train the critic of `origin`, which has layers of its own, over the round's mini-batches and write it.

    Returns the figures of each. Raises StageError when a loss or a gradient is not finite.
    """
    model = context.config.model
    critic = load_critic(origin, model, device if ranks.world == 1 else "cpu")
    dtype = torch.bfloat16 if model.dtype == "bfloat16" else torch.float32
    trainer = CriticTrainer(critic, context.config.update, ranks, device=device, dtype=dtype, title=context.title)
    trainer.load_moments(context.input_dir("trainer_state"))
    series = [
        trainer.train(batch, rows, plan.critic_rate(step)) for step, rows in enumerate(mini_batches, plan.state.step)
    ]
    trainer.save(context.output_dir("updated_critic"), context.output_dir("updated_trainer_state"))
    return series


class ValueTrainer(ABC):
    """A module that ends in a value head, its optimizer and the settings of the update.

    On several ranks every one holds the whole batch and runs its share of the rows; what is returned is over all.
    """

    def __init__(
        self, module: torch.nn.Module, traits: ModelTraits, settings: UpdateConfig, ranks: Ranks, title: str
    ) -> None:
        """traits: of the layers under the head."""
        self.module = module
        self.traits = traits
        self.settings = settings
        self.ranks = ranks
        self.optimizer = build_optimizer(module, betas=settings.betas, weight_decay=settings.weight_decay)
        self.title = title
        self._tally = _Tally()

    @abstractmethod
    def values(self, pack: PackedBatch) -> Tensor:
        """[T] values of the tokens in `pack`, with gradients into the module."""

    @abstractmethod
    def save_artifact(self, folder: Path) -> None:
        """Write the critic's artifact, on rank 0."""

    def load_moments(self, trainer_state: Path) -> None:
        """Go on with the moments in the folder of a trainer state."""
        load_moments(trainer_state / CRITIC_MOMENTS_FILE, self.module, self.optimizer)

    def save(self, critic: Path, trainer_state: Path) -> None:
        """Write the critic's artifact, and its moments beside the policy's."""
        self.save_artifact(critic)
        path = trainer_state / CRITIC_MOMENTS_FILE
        save_moments(path, self.module, self.optimizer, write=self.ranks.rank == 0)

    def train(self, batch: Batch, rows: list[int], rate: float) -> Figures:
        """`critic.epochs` optimizer steps on `rows` of `batch` at learning rate `rate`; returns their mean figures.

        The loss is a mean over the trained tokens of the mini-batch, however it is split. Raises StageError, with the
        weights as they were before the step, when the loss or its gradient is not finite.
        """
        mini = batch.take(rows)
        if not mini.mask.any():
            return {}
        weights = token_weights(mini.mask, "token-mean")
        packs = micro_batches(mini, range(len(rows)), self.traits, self.ranks, self.settings)
        device = self.traits.device
        for _ in range(self.settings.critic.epochs):
            for pack in packs:
                self.loss(mini.take(pack.order, device), weights[pack.order].to(device), self.values(pack)).backward()
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
        loss = (weights * losses)[mask].sum()
        self._tally.loss += loss.item()
        self._tally.clipped += float((losses > value_loss(values, old, returns, 0.0))[mask].sum())
        self._tally.tokens += float(mask.sum())
        return loss

    def apply(self, rate: float) -> None:
        """Clip the gradient that is there and let the optimizer move the module."""
        self._require_finite("value loss", self.ranks.total(self._tally.loss))
        norm = self.ranks.clip_gradients(self.module.parameters(), self.settings.max_grad_norm)
        self._require_finite("critic's gradient norm", norm)
        self._tally.norms.append(norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def figures(self) -> Figures:
        """Means over the optimizer steps since the last call."""
        tally, self._tally = self._tally, _Tally()
        tokens = self.ranks.total(tally.tokens)
        return {
            "value_loss": self.ranks.total(tally.loss) / len(tally.norms),
            "value_clip_fraction": self.ranks.total(tally.clipped) / tokens if tokens else None,
            "critic_grad_norm": sum(tally.norms) / len(tally.norms),
        }

    def _require_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise StageError(
                f"{self.title}: the {what} is {value}; the critic was not changed. Lower update.critic.learning_rate "
                "or look at the rewards of this round"
            )


class CriticTrainer(ValueTrainer):
    """A critic with layers of its own."""

    def __init__(
        self,
        critic: Critic,
        settings: UpdateConfig,
        ranks: Ranks,
        *,
        device: torch.device,
        dtype: torch.dtype,
        title: str = "update",
    ) -> None:
        """dtype: compute type of the layers; weights, gradients and moments are float32."""
        # Looks at whole weights, so it comes before they are spread.
        traits = dataclasses.replace(probe_layers(critic.layers), device=device)
        if ranks.world > 1:
            spread(critic, critic.layers, ranks, device=device, dtype=dtype)
        super().__init__(critic, traits, settings, ranks, title)
        self.critic = critic
        self.dtype = dtype

    def values(self, pack: PackedBatch) -> Tensor:
        found: Tensor = self.critic(pack, self.dtype)
        return found

    def save_artifact(self, folder: Path) -> None:
        weights = whole_weights(self.critic)
        if self.ranks.rank == 0:
            save_critic(folder, self.critic.head, self.critic.layers, weights)


class SharedCriticTrainer(ValueTrainer):
    """A value head on the policy's layers; `train` moves the head alone, `extra_loss` the layers too."""

    def __init__(
        self, head: torch.nn.Linear, policy: ParallelPolicy, settings: UpdateConfig, title: str = "update"
    ) -> None:
        """Raises ConfigError where the policy's layers are spread over several processes."""
        if policy.ranks.world > 1:
            raise ConfigError(
                f"update.critic.shared is true with {policy.ranks.world} training processes: layers that are spread "
                "serve one head only; set runtime.processes=1 or update.critic.shared=false"
            )
        super().__init__(head, policy.traits, settings, policy.ranks, title)
        self.head = head
        self.policy = policy

    @classmethod
    def open(cls, context: StageContext, origin: CriticOrigin, policy: ParallelPolicy) -> "SharedCriticTrainer":
        """The head of `origin` on the layers of `policy`, with the moments of the input trainer state."""
        trainer = cls(origin.head.to(policy.traits.device), policy, context.config.update, context.title)
        trainer.load_moments(context.input_dir("trainer_state"))
        return trainer

    def values(self, pack: PackedBatch) -> Tensor:
        with torch.no_grad():
            states = completion_states(self.policy.model, pack, self.policy.dtype)
        return head_values(self.head, states)

    def extra_loss(self, micro: Batch, weights: Tensor, states: Tensor) -> Tensor:
        """`critic.coef` times the value loss of a micro-batch of the policy, to be added to its loss.

        states: [T, D], the tokens of `micro`'s rows one after the other; weights: [n, R], the policy's.
        """
        return self.settings.critic.coef * self.loss(micro, weights, head_values(self.head, states))

    def follow(self, rate: float) -> Figures:
        """Move the head by what the policy's micro-batches left in its gradient; returns the figures of the step."""
        self.apply(rate)
        return self.figures()

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
