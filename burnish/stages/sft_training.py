"""The optimizer loop of the cold start: a series row a step, a validation pass an epoch, the best weights at the end.

The loss is a mean over the labelled tokens of the whole optimizer step, however it is cut into micro-batches.
"""

import math
import time
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from burnish.contracts.config import SftConfig
from burnish.contracts.errors import StageError
from burnish.maths.schedule import learning_rate
from burnish.models.logprobs import plan_batches, token_logprobs
from burnish.models.probe import probe_model
from burnish.stages.progress import announce, progress
from burnish.stages.sft_batches import Example, Examples, epoch_steps


class Training:
    """Trains `model` in place; `series` and `metrics` say how it went."""

    def __init__(
        self, model: PreTrainedModel, settings: SftConfig, examples: Examples, *, dtype: torch.dtype, seed: int
    ) -> None:
        self._model, self._settings, self._examples = model, settings, examples
        self._dtype, self._seed = dtype, seed
        self._traits = probe_model(model)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
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
            self._model.load_state_dict(best_weights)
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

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

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
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), settings.max_grad_norm).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise StageError(f"sft: loss {loss} and gradient norm {norm} at step {step + 1}; lower sft.learning_rate")
        self._optimizer.step()
        self._tokens += sum(len(example.input_ids) + len(example.response_ids) for example in batch)
        return {"step": float(step + 1), "loss": loss, "lr": lr, "grad_norm": norm, "val_loss": None}

    @torch.no_grad()
    def validation_loss(self) -> float | None:
        """Mean negative logprob of the held-back tokens; None when nothing is held back."""
        held_back = self._examples.validation
        return sum(part.item() for part in self.mean_losses(held_back)) if held_back else None

    def mean_losses(self, examples: list[Example]) -> Iterator[torch.Tensor]:
        """The micro-batches' shares of the mean over all labelled tokens of `examples`; they add up to it."""
        tokens = sum(len(example.response_ids) for example in examples)
        budget = self._settings.token_budget
        for packed in plan_batches(self._traits, examples, token_budget=budget, share_prompt=False):
            logprobs, _ = token_logprobs(self._model, packed, dtype=self._dtype)
            yield -logprobs.sum() / tokens
