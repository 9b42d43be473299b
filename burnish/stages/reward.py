"""Score the rollouts: components, fused reward, flags; and how a round's groups did."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from burnish.contracts.parquet import iter_records, read_records, write_records
from burnish.contracts.records import Execution, Prompt, Reward, Rollout
from burnish.rewards.score import score, solved
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import progress


def run(context: StageContext) -> StageResult:
    """rollouts.parquet, executions.parquet and prompts.parquet in, rewards.parquet out."""
    prompts = {
        prompt.prompt_id: prompt for prompt in read_records(context.input_dir("prompts") / "prompts.parquet", Prompt)
    }
    executions = {
        execution.sample_id: execution
        for execution in iter_records(context.input_dir("executions") / "executions.parquet", Execution)
    }
    rollouts = read_records(context.input_dir("rollouts") / "rollouts.parquet", Rollout)
    limit = context.config.rollout.max_new_tokens
    scored = score(rollouts, executions, prompts, context.config.reward, limit)
    rewards = list(progress(scored, len(rollouts), context.title, "samples"))
    rows = write_records(context.output_dir("rewards") / "rewards.parquet", rewards, Reward)
    return StageResult(metrics=reward_metrics(rollouts, rewards), counts={"rewards": {"rows": rows}})


def reward_metrics(rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> dict[str, float | None]:
    """Means and shares over one round. None where nothing was measured."""
    by_id = {reward.sample_id: reward for reward in rewards}
    values = [reward.reward for reward in rewards if reward.reward is not None]
    metrics: dict[str, float | None] = {
        "reward/mean": _mean(values),
        "reward/std": pstdev(values) if values else None,
        "reward/missing": float(len(rewards) - len(values)),
    }
    by_task: dict[str, list[float]] = defaultdict(list)
    groups: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        reward = by_id[rollout.sample_id]
        if reward.reward is not None:
            by_task[rollout.task].append(reward.reward)
        right = solved(reward)
        if right is not None:
            groups[rollout.group_id].append(right)
    metrics |= {f"reward/task/{task}": _mean(found) for task, found in sorted(by_task.items())}

    names = sorted({name for reward in rewards for name in reward.components})
    for name in names:
        found = [value for reward in rewards if (value := reward.components.get(name)) is not None]
        metrics[f"reward/component/{name}"] = _mean(found)

    flags = [flag for reward in rewards for flag in reward.flags]
    metrics |= {f"flag/{flag}": float(flags.count(flag)) for flag in sorted({*flags, "truncated"})}
    metrics |= {
        "solved/mean": _mean([float(right) for group in groups.values() for right in group]),
        "groups/all_solved": _mean([float(all(group)) for group in groups.values()]),
        "groups/none_solved": _mean([float(not any(group)) for group in groups.values()]),
        "groups/some_solved": _mean([float(any(group) and not all(group)) for group in groups.values()]),
    }
    return metrics


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("reward")
