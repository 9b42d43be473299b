"""The optimizer loop of the cold start: a series row a step, a validation pass an epoch, the best weights at the end.

The loss is a mean over the labelled tokens of the whole optimizer step, however it is cut into micro-batches.
"""

import math
import time
from collections.abc import Iterator

import torch

from burnish.contracts.config import SftConfig
from burnish.contracts.errors import StageError
from burnish.maths.schedule import learning_rate
from burnish.models.logprobs import plan_batches
from burnish.models.parallel import ParallelPolicy
from burnish.stages.progress import announce, progress
from burnish.stages.sft_batches import Example, Examples, epoch_steps
from burnish.stages.trainer_state import build_optimizer

_BETAS = (0.9, 0.999)


class Training:
    """Trains `policy` in place; `series` and `metrics` say how it went, on all ranks together."""

    def __init__(self, policy: ParallelPolicy, settings: SftConfig, examples: Examples, *, seed: int) -> None:
        self._policy, self._settings, self._examples, self._seed = policy, settings, examples, seed
        self._trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._optimizer = build_optimizer(policy.model, betas=_BETAS, weight_decay=settings.weight_decay)
        self._steps_per_epoch = math.ceil(len(examples.train) / settings.batch_size)
        self._tokens = 0
        self._seconds = 0.0
        self._best_loss: float | None = None
        self.series: list[dict[str, float | None]] = []

    def fit(self, title: str) -> None:
        """Train until the epochs are over or validation has not improved for `patience` of them.

        Raises StageError when the loss or a gradient is not finite.
        """
        started = time.perf_counter()
        total = self._steps_per_epoch * self._settings.epochs
        self._best_loss = self.validation_loss()
        best_weights, waited = self._weights() if self._examples.validation else None, 0
        for step, batch in enumerate(progress(self._batches(), total, title, "steps")):
            row = self._step(step, total, batch)
            self.series.append(row)
            if (step + 1) % self._steps_per_epoch:
                continue
            loss = row["val_loss"] = self.validation_loss()
            if loss is None or self._best_loss is None:
                continue
            if loss < self._best_loss:
                self._best_loss, best_weights, waited = loss, self._weights(), 0
                continue
            waited += 1
            if waited == self._settings.patience:
                announce(f"{title}: validation loss has not improved for {waited} epochs, stopping")
                break
        if best_weights is not None and waited:
            for parameter, best in zip(self._trained, best_weights, strict=True):
                parameter.detach().copy_(best)
        self._seconds = time.perf_counter() - started

    def metrics(self) -> dict[str, float | None]:
        return {
            "demonstrations": float(len(self._examples.train)),
            "validation_demonstrations": float(len(self._examples.validation)),
            "too_long": float(self._examples.too_long),
            "steps": float(len(self.series)),
            "epochs": len(self.series) / self._steps_per_epoch,
            "loss": self.series[-1]["loss"],
            "val_loss": self._best_loss,
            "tokens_per_second": self._tokens / self._seconds,
            "seconds": self._seconds,
        }

    def _batches(self) -> Iterator[list[Example]]:
        for epoch in range(self._settings.epochs):
            yield from epoch_steps(
                self._examples.train, batch_size=self._settings.batch_size, epoch=epoch, seed=self._seed
            )

    def _weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._trained]

    def _step(self, step: int, total: int, batch: list[Example]) -> dict[str, float | None]:
        """One optimizer step over `batch`; returns its series row."""
        settings = self._settings
        lr = learning_rate(
            step,
            total_steps=total,
            peak=settings.learning_rate,
            warmup_steps=math.ceil(settings.warmup_ratio * total),
            schedule=settings.schedule,
            final_ratio=settings.final_lr_ratio,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in self.mean_losses(batch):
            torch.autograd.backward(part)
            loss += part.item()
        loss = self._policy.ranks.total(loss)
        norm = self._policy.clip_gradients(settings.max_grad_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise StageError(f"sft: loss {loss} and gradient norm {norm} at step {step + 1}; lower sft.learning_rate")
        self._optimizer.step()
        self._tokens += sum(len(example.input_ids) + len(example.response_ids) for example in batch)
        return {"step": float(step + 1), "loss": loss, "lr": lr, "grad_norm": norm, "val_loss": None}

    @torch.no_grad()
    def validation_loss(self) -> float | None:
        """Mean negative logprob of the held-back tokens; None when nothing is held back."""
        held_back = self._examples.validation
        if not held_back:
            return None
        return self._policy.ranks.total(sum(part.item() for part in self.mean_losses(held_back)))

    def mean_losses(self, examples: list[Example]) -> Iterator[torch.Tensor]:
        """This rank's micro-batches' shares of the mean over all labelled tokens of `examples`; they add up to it."""
        policy = self._policy
        tokens = sum(len(example.response_ids) for example in examples)
        mine = policy.ranks.share(
            examples, [len(example.input_ids) + len(example.response_ids) for example in examples]
        )
        packs = plan_batches(policy.traits, mine, token_budget=self._settings.token_budget, share_prompt=False)
        for packed in policy.ranks.in_step(packs):
            logprobs, _ = policy(packed)
            yield -logprobs.sum() / tokens
