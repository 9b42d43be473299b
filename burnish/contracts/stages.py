"""The stages as data: what each reads and writes, which settings it may look at, whether it needs torch.

The harness, the components, the Dockerfiles and the placement table are all checked against this one table.
"""

from dataclasses import dataclass, field

from burnish.contracts.artifacts import Kind
from burnish.contracts.errors import ConfigError

# KFP's workflow object must stay well below etcd's 1.5 MB, and a DAG of more pods is no longer readable.
MAX_TASKS = 40


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline."""

    name: str
    reads: dict[str, Kind] = field(default_factory=dict)
    """Kind of each input artifact, by name."""
    writes: dict[str, Kind] = field(default_factory=dict)
    """Kind of each output artifact, by name."""
    sections: tuple[str, ...] = ()
    """Fields of RunConfig it may read; its result is remembered under them."""
    torch: bool = False
    """Light stages have no torch in their image."""
    tracked: bool = False
    """Its process brings MLflow up to date with all of the run's records when it is done."""
    begins_round: bool = False
    """Whether the budget bears another round is asked before it."""
    remembered: bool = True
    """The same inputs and settings give the same result, so a finished one is never run again."""


_ALL = (
    "schema_version", "name", "seed", "rounds", "max_staleness", "model", "tasks", "sft", "rollout", "execute",
    "reward", "logprob", "update", "collapse", "evaluate", "runtime", "track", "report", "cost",
    "start", "campaign",
)  # fmt: skip

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "validate",
            writes={"resolved": "config", "prompts": "prompts"},
            sections=_ALL,
            # It reads files that no setting describes (jsonl tasks, sft.data, a local tokenizer); same content,
            # same prompts, so the stages after it are remembered all the same.
            remembered=False,
        ),
        Stage(
            "sft",
            reads={"prompts": "prompts"},
            # Where the rounds start from; the critic and the verdict are empty until an update has something to say.
            writes={"policy": "policy", "trainer_state": "trainer_state", "critic": "critic", "verdict": "verdict"},
            sections=("seed", "model", "sft", "runtime", "start"),
            torch=True,
        ),
        Stage(
            "rollout",
            reads={"policy": "policy", "prompts": "prompts", "verdict": "verdict"},
            writes={"rollouts": "rollouts"},
            sections=("seed", "model", "tasks", "rollout", "runtime"),
            torch=True,
            begins_round=True,
        ),
        Stage(
            "execute",
            reads={"rollouts": "rollouts", "prompts": "prompts"},
            writes={"executions": "executions"},
            sections=("execute",),
        ),
        Stage(
            "reward",
            reads={"rollouts": "rollouts", "executions": "executions", "prompts": "prompts"},
            writes={"rewards": "rewards"},
            sections=("rollout", "reward"),
        ),
        Stage(
            "logprob",
            reads={"rollouts": "rollouts", "policy": "policy", "reference": "policy", "critic": "critic"},
            writes={"logprobs": "logprobs"},
            sections=("seed", "model", "logprob", "update", "runtime"),
            torch=True,
        ),
        Stage(
            "update",
            reads={
                "rollouts": "rollouts",
                "rewards": "rewards",
                "logprobs": "logprobs",
                "policy": "policy",
                "trainer_state": "trainer_state",
                "critic": "critic",
                "verdict": "verdict",
            },
            writes={
                "updated_policy": "policy",
                "updated_trainer_state": "trainer_state",
                "updated_critic": "critic",
                "updated_verdict": "verdict",
            },
            sections=("seed", "rounds", "model", "rollout", "reward", "update", "collapse", "runtime", "start"),
            torch=True,
            tracked=True,
        ),
        Stage(
            "evaluate",
            reads={"policy": "policy", "prompts": "prompts"},
            writes={"evaluation": "evaluation"},
            sections=("seed", "model", "rollout", "execute", "reward", "evaluate", "runtime", "start"),
            torch=True,
        ),
        Stage(
            "report",
            writes={"report": "report"},
            sections=_ALL,
            remembered=False,
        ),
    )
}


def round_tasks(rollout_shards: int = 1, execute_shards: int = 1) -> int:
    """Tasks of a round: five, and where a stage has shards, one for each and one that gathers them instead."""
    return 5 + sum(shards for shards in (rollout_shards, execute_shards) if shards > 1)


def dag_tasks(rounds: int, rollout_shards: int = 1, execute_shards: int = 1) -> int:
    """Tasks of a run: validate, sft, evaluate before, report; the rounds'; evaluate after when there are rounds.

    A shard counts as much as any task: it is no longer in the IR than one, but Argo keeps the state of each pod in the
    workflow object.
    """
    return 4 + round_tasks(rollout_shards, execute_shards) * rounds + (1 if rounds else 0)


def check_task_budget(rounds: int, rollout_shards: int = 1, execute_shards: int = 1) -> None:
    """Raises ConfigError when a run of `rounds` rounds is too large for one DAG."""
    tasks = dag_tasks(rounds, rollout_shards, execute_shards)
    if tasks > MAX_TASKS:
        most = (MAX_TASKS - 5) // round_tasks(rollout_shards, execute_shards)
        sharded = f" and rollout.shards {rollout_shards}" if rollout_shards > 1 else ""
        fewer = f"use rounds <= {most}, and burnish campaign for more rounds than that" if most else ""
        remedies = [fewer, "use fewer rollout.shards" if sharded else ""]
        raise ConfigError(
            f"rounds is {rounds}{sharded}, which makes {tasks} tasks; one DAG holds at most {MAX_TASKS}: "
            f"{', or '.join(filter(None, remedies))}"
        )
