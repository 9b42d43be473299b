"""One round of training as a graph of stages; the picture in the README is this function.

rollout --+-- execute -- reward --+
          |                       +-- update --> policy, trainer state, critic, verdict
          +-- logprob ------------+

With shards, rollout and execute are each a loop over them and a task that gathers what they made.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from kfp import dsl
from kfp.dsl import PipelineTask

from burnish.contracts.artifacts import stage_title
from components.execute.component import execute
from components.gather.component import gather
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
    rollout_shards: Any = None
    """The list of a round's shards, for the pods to share its rollouts; None: one pod draws them all."""
    execute_shards: Any = None
    """The same for execution."""


@dataclass(frozen=True)
class State:
    """What one update hands to the next."""

    policy: Any
    trainer_state: Any
    critic: Any
    verdict: Any

    @classmethod
    def of(cls, task: PipelineTask, prefix: str = "") -> "State":
        """The outputs of sft, or with prefix `updated_` those of an update."""
        return cls(*(task.outputs[f"{prefix}{field.name}"] for field in fields(cls)))


def training_round(round: int, run: RunInputs, sampled: State, reference: State, current: State, place: Place) -> State:
    """Add round `round` (from 1), which trains `current`; returns the state after it.

    `sampled` gives the policy that draws: `current` on-policy, an earlier one when max_staleness lets rollouts run
    ahead. `reference` gives the one that the KL term refers to.
    """

    def stage(component: Any, **inputs: Any) -> PipelineTask:
        task = component(round=round, resolved=run.resolved, **run.identity, **inputs)
        name = component.name
        return place(task, name).set_display_name(stage_title(name, round))

    def shared(component: Any, output: str, shards: Any, **inputs: Any) -> Any:
        if shards is None:
            return stage(component, **inputs).outputs[output]
        name = component.name
        with dsl.ParallelFor(shards, name=f"{stage_title(name, round)} shards") as shard:
            part = stage(component, shard=shard, **inputs)
        gathered = gather(stage=name, shards=dsl.Collected(part.outputs[output]), **run.identity)
        # A light task without an image of its own: that of reward has what it takes and no GPU.
        return place(gathered, "reward").set_display_name(f"{stage_title(name, round)} gather").outputs["whole"]

    drawn = {"policy": sampled.policy, "verdict": sampled.verdict, "prompts": run.prompts}
    rollouts = shared(rollout, "rollouts", run.rollout_shards, **drawn)
    executions = shared(execute, "executions", run.execute_shards, rollouts=rollouts, prompts=run.prompts)
    rewards = stage(reward, rollouts=rollouts, executions=executions, prompts=run.prompts).outputs["rewards"]
    scored = stage(logprob, rollouts=rollouts, policy=current.policy, reference=reference.policy, critic=current.critic)
    updated = stage(update, rollouts=rollouts, rewards=rewards, logprobs=scored.outputs["logprobs"], **vars(current))
    return State.of(updated, "updated_")
