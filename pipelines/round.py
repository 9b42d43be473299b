"""One round of training as a graph of stages; the picture in the README is this function.

rollout --+-- execute -- reward --+
          |                       +-- update --> policy, trainer state
          +-- logprob ------------+
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kfp.dsl import PipelineTask

from burnish.contracts.artifacts import stage_title
from components.execute.component import execute
from components.logprob.component import logprob
from components.reward.component import reward
from components.rollout.component import rollout
from components.update.component import update

Place = Callable[[PipelineTask, str], PipelineTask]
"""Gives a task of the named stage its image, resources, secrets and retries."""


@dataclass(frozen=True)
class RunInputs:
    """Outputs that every round reads."""

    identity: dict[str, Any]
    """run_id and job_id."""
    resolved: Any
    prompts: Any
    reference: Any


def training_round(
    round: int, run: RunInputs, sampling_policy: Any, policy: Any, trainer_state: Any, place: Place
) -> tuple[Any, Any]:
    """Add round `round` (from 1); returns the updated policy and trainer state.

    `sampling_policy` is `policy` on-policy, and an earlier one when max_staleness lets rollouts run ahead.
    """

    def stage(component: Any, **inputs: Any) -> PipelineTask:
        task = component(round=round, resolved=run.resolved, **run.identity, **inputs)
        name = component.name
        return place(task, name).set_display_name(stage_title(name, round))

    rollouts = stage(rollout, policy=sampling_policy, prompts=run.prompts).outputs["rollouts"]
    executions = stage(execute, rollouts=rollouts, prompts=run.prompts).outputs["executions"]
    rewards = stage(reward, rollouts=rollouts, executions=executions, prompts=run.prompts).outputs["rewards"]
    logprobs = stage(logprob, rollouts=rollouts, policy=policy, reference=run.reference).outputs["logprobs"]
    updated = stage(
        update, rollouts=rollouts, rewards=rewards, logprobs=logprobs, policy=policy, trainer_state=trainer_state
    )
    return updated.outputs["updated_policy"], updated.outputs["updated_trainer_state"]
