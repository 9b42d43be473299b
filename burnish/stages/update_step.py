"""One optimizer step of the policy: micro-batches whose losses add up to that of the whole mini-batch.

Denominators, importance weights and rejections are settled over the mini-batch before the first forward pass.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.contracts.algorithm import UpdateConfig
from burnish.contracts.errors import StageError
from burnish.contracts.records import Rollout
from burnish.maths.aggregation import token_weights
from burnish.maths.correction import correction_weights, effective_sample_share, off_policy_rejected
from burnish.maths.kl import kl_estimate, off_policy_kl
from burnish.maths.losses import policy_loss
from burnish.maths.positive import positive_nll_weights
from burnish.models.backbone import completion_states
from burnish.models.grouping import PackedBatch
from burnish.models.logprobs import plan_batches, state_logprobs
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.models.probe import ModelTraits
from burnish.stages.progress import progress
from burnish.stages.update_batch import Batch
from burnish.stages.update_tally import Tally

Figures = dict[str, float | None]

ExtraLoss = Callable[[Batch, Tensor, Tensor], Tensor]
"""(rows of a micro-batch, their token weights [n, R], states [T, D] in the order of `inside`) -> a scalar that is added
to the loss: the value loss of a critic that shares the policy's layers."""


class NotFinite(StageError):
    """The loss or the gradient of a step is not a number; the weights are as they were."""

    def __init__(self, title: str, what: str, value: float) -> None:
        super().__init__(
            f"{title}: the {what} is {value}; the policy was not changed. Lower update.learning_rate or look at the "
            "rewards and logprobs of this round"
        )
        self.figures: Figures = {"loss" if what == "loss" else "grad_norm": value}


@dataclass(frozen=True)
class _Factors:
    """What multiplies the token losses of a mini-batch, [n, R] each."""

    weights: Tensor
    """Aggregation: denominators of the whole mini-batch."""
    correction: Tensor
    """Sampler-trainer mismatch."""
    likelihood: Tensor
    """Of the likelihood loss on positive samples."""

    def take(self, rows: Sequence[int], device: torch.device) -> "_Factors":
        index = torch.tensor(rows, dtype=torch.long)
        return _Factors(*(each[index].to(device) for each in (self.weights, self.correction, self.likelihood)))


@dataclass(frozen=True)
class PolicyTrainer:
    """The policy, its optimizer and the settings of the update.

    On several ranks every one holds the whole batch and runs its share of the rows; what is returned is over all.
    """

    policy: ParallelPolicy
    optimizer: torch.optim.Optimizer
    settings: UpdateConfig
    completion_limit: int
    """Longest allowed completion, the constant denominator of seq-mean-token-sum-norm."""
    title: str = "update"
    clip_factor: float = 1.0
    """Both clip ranges are multiplied by it: less than 1 after a rollback."""
    extra_loss: ExtraLoss | None = None
    """In one process only."""

    def step(
        self, batch: Batch, rows: Sequence[int], *, rate: float, kl_coef: float = 0.0, measure_signs: bool = False
    ) -> Figures:
        """One step on `rows` of `batch` at learning rate `rate`; returns its figures, `skipped` 1 or 0 among them.

        kl_coef: weight of the KL term when it is in the loss. measure_signs: also measure which part of the gradient
        positive and negative samples make up, on the smallest micro-batch that holds both.
        A mini-batch without a gradient (no rows, or neither advantage nor another term) changes nothing, moments
        included. Raises NotFinite, with the weights as they were.
        """
        kl_coef = kl_coef if self.settings.kl.place == "loss" else 0.0
        mini = batch.take(rows)
        factors, figures = self._prepare(mini)
        # A sample with advantage 0 and no other term adds 0 to the loss and to its gradient. It stays in the
        # denominators, but there is no need to run it.
        wanted = bool(kl_coef) or self.extra_loss is not None
        active = [row for row in range(len(rows)) if mini.mask[row].any() and (wanted or mini.advantages[row].any())]
        figures |= {"lr": rate, "skipped": float(not active)}
        if not active:
            return figures
        tally, norms = Tally(), list[float]()
        packs = self._share(mini, active)
        measured = self._smallest_of_both_signs(packs, mini) if measure_signs else None
        for pack in progress(packs, len(packs), self.title, "micro-batches"):
            micro = mini.take(pack.order, self.policy.traits.device)
            policy, rest = self._terms(pack, micro, factors.take(pack.order, self.policy.traits.device), kl_coef, tally)
            if pack is measured:
                signs = (micro.advantages > 0, micro.advantages < 0)
                norms = [self._gradient_norm(policy[sign].sum()) for sign in signs]
            torch.autograd.backward(policy.sum() + rest)
        tally = tally.over(self.policy.ranks)
        if not math.isfinite(tally.loss):
            raise NotFinite(self.title, "loss", tally.loss)
        return figures | tally.figures() | _sign_figures(norms) | {"grad_norm": self._apply(rate)}

    def divergence(self, batch: Batch) -> float | None:
        """KL between the policy that the round started from and the present one, nats a trained token (k3)."""
        total = 0.0
        with torch.inference_mode():
            for pack in self._share(batch, range(len(batch.rollouts))):
                micro = batch.take(pack.order, self.policy.traits.device)
                logprobs = _in_rows(self.policy(pack)[0], micro.inside)
                total += float(kl_estimate(micro.trainer_logprobs, logprobs, "k3")[micro.mask].double().sum())
        return self.policy.ranks.total(total) / float(batch.mask.sum()) if batch.mask.any() else None

    def _share(self, batch: Batch, rows: Sequence[int]) -> list[PackedBatch]:
        return micro_batches(batch, rows, self.policy.traits, self.policy.ranks, self.settings)

    def _prepare(self, mini: Batch) -> tuple[_Factors, Figures]:
        """All that depends on the whole mini-batch, on the CPU, and what there is to say about it."""
        settings, mask = self.settings, mini.mask
        correction = correction_weights(mini.old_logprobs, mini.rollout_logprobs, mask, settings.correction)
        aggregation = settings.loss.aggregation or "token-mean"
        factors = _Factors(
            weights=token_weights(mask, aggregation, self.completion_limit, mini.group_ids()),
            correction=correction.weights,
            likelihood=positive_nll_weights(mini.advantages, mask) * (settings.positive.nll_weight or 0.0),
        )
        applied, advantages = correction.weights[mask], mini.advantages[mask]
        return factors, {
            "samples": float(len(mini.rollouts)),
            "groups": float(len(set(mini.group_ids()))),
            "ess": effective_sample_share(applied),
            "correction_mean": float(applied.mean()) if applied.numel() else None,
            "rejected_sequences": float(correction.rejected_sequences.sum()),
            "advantage_mean": float(advantages.mean()) if advantages.numel() else None,
            "advantage_std": float(advantages.std(unbiased=False)) if advantages.numel() else None,
            "advantage_max": float(advantages.abs().max()) if advantages.numel() else None,
        }

    def _terms(
        self, pack: PackedBatch, micro: Batch, factors: _Factors, kl_coef: float, tally: Tally
    ) -> tuple[Tensor, Tensor]:
        """Forward pass of one micro-batch: the policy loss of each token, [n, R], and the sum of all other terms."""
        settings, mask = self.settings, micro.mask
        rest = torch.zeros((), device=mask.device)
        if self.extra_loss is None:
            flat, entropy = self.policy(pack)
        else:
            states = completion_states(self.policy.model, pack, self.policy.dtype)
            flat, entropy = state_logprobs(self.policy.model, states, pack)
            rest = rest + self.extra_loss(micro, factors.weights, states)
        logprobs = _in_rows(flat, micro.inside)
        token = policy_loss(logprobs, micro.old_logprobs, micro.advantages, mask, settings.loss, self.clip_factor)
        correction = factors.correction
        limit = settings.correction.reject_off_policy
        if limit is not None:
            rejected = off_policy_rejected(micro.old_logprobs, logprobs.detach(), micro.row_advantages(), mask, limit)
            correction = torch.where(rejected[:, None], 0.0, correction)
            tally.rejected += float(rejected.sum())
        policy = factors.weights * correction * token.loss - factors.likelihood * logprobs
        seen = {
            "ratio": token.ratio,
            "clipped_low": token.clipped_low,
            "clipped_high": token.clipped_high,
            "entropy": _in_rows(entropy, micro.inside),
        }
        reference = micro.ref_logprobs
        if reference is not None:
            seen["kl"] = kl_estimate(logprobs.detach(), reference, "k3")
            if kl_coef:
                estimator = settings.kl.estimator or "k3"
                kl = (
                    off_policy_kl(logprobs, micro.old_logprobs, reference, estimator)
                    if settings.kl.off_policy
                    else kl_estimate(logprobs, reference, estimator)
                )
                rest = rest + kl_coef * (factors.weights * kl).sum()
        tally.policy_loss += float(policy.detach().sum())
        tally.loss += float(policy.detach().sum() + rest.detach())
        tally.add(mask, seen)
        return policy, rest

    def _smallest_of_both_signs(self, packs: Sequence[PackedBatch], mini: Batch) -> PackedBatch | None:
        """Where the gradient's parts are cheapest to tell apart; None where no micro-batch holds both signs."""
        # Spread weights have no gradients to look at before a whole backward pass is over.
        if self.policy.ranks.world > 1:
            return None
        mixed = [
            pack
            for pack in packs
            if (mini.advantages[pack.order] > 0).any() and (mini.advantages[pack.order] < 0).any()
        ]
        return min(mixed, key=lambda pack: pack.input_ids.numel(), default=None)

    def _gradient_norm(self, part: Tensor) -> float:
        """Norm of the gradient of `part` alone; the graph and the gradients that are there stay as they are.

        Each weight's gradient is let go as soon as its norm is known, so no second set of gradients takes memory.
        """
        parameters = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        kept = [parameter.grad for parameter in parameters]
        norms: list[Tensor] = []

        def measure(parameter: Tensor) -> None:
            assert parameter.grad is not None
            norms.append(parameter.grad.norm())
            parameter.grad = None

        hooks = [parameter.register_post_accumulate_grad_hook(measure) for parameter in parameters]
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(part, retain_graph=True)
        for hook in hooks:
            hook.remove()
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
        return float(torch.stack(norms).norm())

    def _apply(self, rate: float) -> float:
        """Clip the gradient and let the optimizer move the weights; returns the norm before clipping."""
        norm = self.policy.clip_gradients(self.settings.max_grad_norm)
        if not math.isfinite(norm):
            raise NotFinite(self.title, "gradient norm", norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def micro_batches(
    batch: Batch, rows: Sequence[int], traits: ModelTraits, ranks: Ranks, settings: UpdateConfig
) -> list[PackedBatch]:
    """This rank's micro-batches of `rows`; their `order` holds rows of `batch`."""
    mine = ranks.share(rows, [_cost(batch.rollouts[row]) for row in rows])
    packs = plan_batches(
        traits,
        [batch.rollouts[row] for row in mine],
        token_budget=settings.token_budget,
        share_prompt=settings.share_prompt,
    )
    return ranks.in_step([dataclasses.replace(pack, order=[mine[index] for index in pack.order]) for pack in packs])


def _cost(rollout: Rollout) -> int:
    return len(rollout.input_ids) + len(rollout.response_ids)


def _in_rows(flat: Tensor, inside: Tensor) -> Tensor:
    """[T] values of a pack as [n, R], 0 where there is no token; gradients flow back."""
    return torch.zeros(inside.shape, dtype=flat.dtype, device=flat.device).masked_scatter(inside, flat)


def _sign_figures(norms: Sequence[float]) -> Figures:
    positive, negative = norms or (None, None)
    total = (positive or 0.0) + (negative or 0.0)
    return {
        "grad_norm_positive": positive,
        "grad_norm_negative": negative,
        "negative_gradient_share": negative / total if negative is not None and total else None,
    }
