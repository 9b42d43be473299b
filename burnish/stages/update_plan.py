"""Learning rate and KL weight of every optimizer step of a round: pure functions of the step and the trainer state.

That is why a resumed run has nothing else to restore.
"""

from dataclasses import dataclass

from burnish.contracts.algorithm import UpdateConfig
from burnish.maths.schedule import learning_rate, scheduled
from burnish.stages.trainer_state import TrainerState


@dataclass(frozen=True)
class Plan:
    """What one round is told about its steps."""

    settings: UpdateConfig
    rounds: int
    """Of the whole run."""
    round: int
    """This one, from 1."""
    state: TrainerState
    """From the round before."""
    lr_factor: float = 1.0
    """What rollbacks have multiplied the learning rate by."""

    @property
    def critic_only(self) -> bool:
        """Whether the policy is left alone in this round, while the critic learns."""
        return self.round <= self._critic_rounds

    def rate(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0 over the run."""
        # Warm-up and decay are over the steps that the policy takes.
        before = self._critic_rounds * self._steps_a_round
        return (
            learning_rate(
                step - before,
                total_steps=self.rounds * self._steps_a_round - before,
                peak=self.settings.learning_rate,
                warmup_steps=self.settings.warmup_steps,
                schedule=self.settings.schedule,
                final_ratio=self.settings.final_lr_ratio,
            )
            * self.state.lr_scale
            * self.lr_factor
        )

    def critic_rate(self, step: int) -> float:
        """Learning rate of the critic at optimizer step `step`: of the same shape, over the whole run."""
        return self.lr_factor * learning_rate(
            step,
            total_steps=self.rounds * self._steps_a_round,
            peak=self.settings.critic.learning_rate,
            warmup_steps=self.settings.warmup_steps,
            schedule=self.settings.schedule,
            final_ratio=self.settings.final_lr_ratio,
        )

    def kl_coef(self, step: int) -> float:
        """Weight of the KL term at optimizer step `step`."""
        kl = self.settings.kl
        if kl.schedule == "adaptive" and self.state.kl_coef is not None:
            return self.state.kl_coef
        return scheduled(step, self.rounds * self._steps_a_round, kl.coef or 0.0, kl.schedule, kl.final_ratio)

    @property
    def _critic_rounds(self) -> int:
        return self.settings.critic.warmup_rounds if self.settings.needs_critic else 0

    @property
    def _steps_a_round(self) -> int:
        return self.settings.steps * self.settings.epochs
