"""One optimizer step of the policy: micro-batches whose losses add up to that of the whole mini-batch.

Every denominator is in the token weights, which are computed over the mini-batch before the first forward pass.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import StageError
from burnish.maths.aggregation import token_weights
from burnish.maths.correction import effective_sample_share, truncated_importance_weights
from burnish.maths.kl import kl_estimate
from burnish.maths.losses import clipped_surrogate
from burnish.models.grouping import PackedBatch
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.probe import ModelTraits
from burnish.stages.progress import progress
from burnish.stages.update_batch import Batch


@dataclass
class _Tally:
    """What the micro-batches of a step saw, token by token, on trained tokens only."""

    loss: float = 0.0
    policy_loss: float = 0.0
    tokens: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, mask: Tensor, **values: Tensor) -> None:
        for name, value in values.items():
            self.tokens.setdefault(name, []).append(value.detach()[mask].float().cpu())

    def get(self, name: str) -> Tensor:
        return torch.cat(self.tokens[name]) if name in self.tokens else torch.zeros(0)

    def mean(self, name: str) -> float | None:
        values = self.get(name)
        return float(values.mean()) if values.numel() else None


@dataclass(frozen=True)
class PolicyTrainer:
    """The model, its optimizer and the settings of the update."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    traits: ModelTraits
    settings: UpdateConfig
    completion_limit: int
    """Longest allowed completion, the constant denominator of seq-mean-token-sum-norm."""
    dtype: torch.dtype = torch.float32
    """Compute type of the layers; weights, gradients and moments are float32."""
    title: str = "update"

    def step(self, batch: Batch, rows: list[int], rate: float) -> dict[str, float | None]:
        """One step on `rows` of `batch` at learning rate `rate`; returns its figures, `skipped` 1 or 0 among them.

        A mini-batch without a gradient (no rows, or no advantage and no KL term) changes nothing, moments included.
        Raises StageError, with the weights as they were, when the loss or a gradient is not finite.
        """
        settings = self.settings
        weights = token_weights(batch.mask[rows], settings.loss.aggregation or "token-mean", self.completion_limit)
        # A sample with advantage 0 and no KL term adds 0 to the loss and to its gradient. It stays in the
        # denominators above, but there is no need to run it.
        active = [at for at, row in enumerate(rows) if settings.kl.coef or batch.advantages[row] != 0]
        figures: dict[str, float | None] = {
            "samples": float(len(rows)),
            "groups": float(len({batch.rollouts[row].group_id for row in rows})),
            "lr": rate,
            "skipped": float(not active),
        }
        if not active:
            return figures
        packs = plan_batches(
            self.traits,
            [batch.rollouts[rows[at]] for at in active],
            token_budget=settings.token_budget,
            share_prompt=settings.share_prompt,
        )
        tally = _Tally()
        for pack in progress(packs, len(packs), self.title, "micro-batches"):
            chosen = [active[index] for index in pack.order]
            self._accumulate(batch, [rows[at] for at in chosen], weights[chosen], pack, tally)
        norm = self._apply(rate)
        return figures | _figures(tally) | {"grad_norm": norm}

    def _accumulate(self, batch: Batch, rows: list[int], weights: Tensor, pack: PackedBatch, tally: _Tally) -> None:
        """Forward and backward of one micro-batch; gradients add to those that are there."""
        settings, device = self.settings, self.model.device
        inside = batch.inside[rows]

        def tokens(values: Tensor) -> Tensor:
            """[rows, R] to the [T] of the pack."""
            return values[inside].to(device)

        mask, weights = tokens(batch.mask[rows]), tokens(weights)
        old, sampler = tokens(batch.old_logprobs[rows]), tokens(batch.rollout_logprobs[rows])
        advantages = tokens(batch.advantages[rows, None].expand_as(inside))
        logprobs, entropy = token_logprobs(self.model, pack, dtype=self.dtype)
        surrogate = clipped_surrogate(
            logprobs, old, advantages, settings.loss.clip_low or 0.0, settings.loss.clip_high or 0.0
        )
        correction = torch.ones_like(old)
        if settings.correction.mode == "token_tis":
            correction = truncated_importance_weights(old, sampler, settings.correction.cap or 2.0)
        policy_loss = (weights * correction * surrogate.loss).sum()
        loss = policy_loss
        if batch.ref_logprobs is not None and settings.kl.coef:
            kl = kl_estimate(logprobs, tokens(batch.ref_logprobs[rows]), settings.kl.estimator or "k3")
            loss = loss + settings.kl.coef * (weights * kl).sum()
            tally.add(mask, kl=kl)
        if not torch.isfinite(loss):
            raise StageError(
                f"{self.title}: the loss is {loss.item()}; the policy was not changed. Lower update.learning_rate or "
                "look at the logprobs of this round"
            )
        loss.backward()
        tally.loss += loss.item()
        tally.policy_loss += policy_loss.item()
        tally.add(
            mask,
            ratio=surrogate.ratio,
            clipped_low=surrogate.clipped_low,
            clipped_high=surrogate.clipped_high,
            entropy=entropy,
            correction=correction,
        )

    def _apply(self, rate: float) -> float:
        """Clip the gradient and let the optimizer move the weights; returns the norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise StageError(
                f"{self.title}: the gradient norm is {norm}; the policy was not changed. Lower update.learning_rate or "
                "look at the rewards and logprobs of this round"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def _figures(tally: _Tally) -> dict[str, float | None]:
    ratio = tally.get("ratio")
    low, high = tally.mean("clipped_low"), tally.mean("clipped_high")
    return {
        "loss": tally.loss,
        "policy_loss": tally.policy_loss,
        "kl": tally.mean("kl"),
        "entropy": tally.mean("entropy"),
        "clip_fraction": None if low is None or high is None else low + high,
        "clip_fraction_low": low,
        "clip_fraction_high": high,
        "ratio_mean": tally.mean("ratio"),
        "ratio_max": float(ratio.max()) if ratio.numel() else None,
        "ess": effective_sample_share(tally.get("correction")),
        "correction_mean": tally.mean("correction"),
        "tokens": float(ratio.numel()),
    }
