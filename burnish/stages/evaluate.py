"""evaluate: how often a policy solves the held-out prompts, by the same sampling, execution and scoring as training.

A completion passes when every verifier that has a say gives it 1 or more; format and length do not decide.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean

from burnish.contracts.config import EvaluateConfig
from burnish.contracts.evaluation import Evaluation, PromptOutcome, Score
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Execution, Prompt, Reward, Rollout
from burnish.maths.passk import bootstrap_interval, pass_at_k
from burnish.models.engine import Sampling, open_engine
from burnish.models.load import load_tokenizer
from burnish.models.runtime import setup_torch
from burnish.models.sampling import plan_samples, sample_prompts
from burnish.rewards.execution import execute_rollouts
from burnish.rewards.score import score, solved
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce, progress


def run(context: StageContext) -> StageResult:
    """Write evaluation.json, and samples, rewards and executions as parquet for the report's browser.

    Nothing, where `evaluate.skip` says so; the earlier evaluation, where the run starts from an evaluated policy.
    """
    config, settings = context.config, context.config.evaluate
    if context.label in settings.skip:
        announce(f"{context.title}: left out (evaluate.skip)")
        context.output_dir("evaluation")
        return StageResult(metadata={"evaluation": {"label": context.label, "left_out": True}})
    if context.label == "before" and config.start.evaluation:
        return _known(context, config.start.evaluation)
    prompts = held_out(read_records(context.input_dir("prompts") / "prompts.parquet", Prompt), settings.max_prompts)
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    version = int(context.inputs["policy"].metadata["policy_version"])
    rollouts = _sample(context, prompts, version) if prompts else []
    executions = sorted(execute_rollouts(rollouts, by_id, config.execute), key=lambda row: row.sample_id)
    executed = {row.sample_id: row for row in executions}
    rewards = list(score(rollouts, executed, by_id, config.reward, config.rollout.max_new_tokens)) if rollouts else []
    evaluation = judge(context.label, version, prompts, rollouts, rewards, settings, config.seed)

    folder = context.output_dir("evaluation")
    (folder / "evaluation.json").write_text(evaluation.model_dump_json(indent=1), "utf-8")
    write_records(folder / "samples.parquet", rollouts, Rollout)
    write_records(folder / "rewards.parquet", rewards, Reward)
    write_records(folder / "executions.parquet", executions, Execution)
    return StageResult(
        metrics=evaluation_metrics(evaluation),
        counts={"evaluation": {"prompts": len(prompts), "samples": len(rollouts)}},
        metadata={"evaluation": {"label": context.label, "policy_version": version}},
    )


def _known(context: StageContext, digest: str) -> StageResult:
    """The evaluation that an earlier run ended with."""
    announce(f"{context.title}: the policy that this run starts from is evaluated already")
    manifest = context.store.get_manifest(digest)
    wanted = [blob for blob in manifest.blobs if blob.path == "evaluation.json"]
    context.store.fetch(manifest.model_copy(update={"blobs": wanted}), context.workdir / "known")
    text = (context.workdir / "known" / "evaluation.json").read_bytes()
    return StageResult(evaluation_metrics(Evaluation.from_json(text, digest)), reused={"evaluation": digest})


def held_out(prompts: Sequence[Prompt], per_task: int) -> list[Prompt]:
    """The first `per_task` prompts of each task's eval split."""
    by_task: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        if prompt.split == "eval":
            by_task[prompt.task].append(prompt)
    return [prompt for task in by_task.values() for prompt in islice(task, per_task)]


def judge(
    label: str,
    policy_version: int,
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    rewards: Sequence[Reward],
    settings: EvaluateConfig,
    seed: int,
) -> Evaluation:
    """The evaluation of these samples; rewards and rollouts are joined by sample_id, prompts by prompt_id."""
    verdict = {reward.sample_id: solved(reward) for reward in rewards}
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        passed = verdict.get(rollout.sample_id)
        if passed is not None:
            verdicts[rollout.prompt_id].append(passed)
    outcomes = [
        PromptOutcome(
            prompt_id=prompt.prompt_id,
            task=prompt.task,
            samples=len(verdicts[prompt.prompt_id]),
            passed=sum(verdicts[prompt.prompt_id]),
        )
        for prompt in prompts
    ]
    tasks = [None, *dict.fromkeys(prompt.task for prompt in prompts)]
    return Evaluation(
        label=label,
        policy_version=policy_version,
        temperature=settings.temperature,
        samples=settings.samples,
        scores=[_score(outcomes, k, task, settings.bootstrap, seed) for task in tasks for k in settings.k],
        outcomes=outcomes,
        unscored=len(rollouts) - sum(outcome.samples for outcome in outcomes),
        response_tokens=fmean(len(rollout.response_ids) for rollout in rollouts) if rollouts else None,
        truncated=fmean(rollout.finish_reason == "length" for rollout in rollouts) if rollouts else None,
    )


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float | None]:
    """`pass@k`, `pass@k/low`, `pass@k/high`, `pass@k/task/<task>`, response length, truncated share."""
    metrics: dict[str, float | None] = {}
    for found in evaluation.scores:
        name = f"pass@{found.k}"
        if found.task is None:
            metrics |= {name: found.value, f"{name}/low": found.low, f"{name}/high": found.high}
        else:
            metrics[f"{name}/task/{found.task}"] = found.value
    return metrics | {
        "response_length_mean": evaluation.response_tokens,
        "truncated_share": evaluation.truncated,
        "unscored": float(evaluation.unscored),
    }


def _score(outcomes: Sequence[PromptOutcome], k: int, task: str | None, resamples: int, seed: int) -> Score:
    values = [
        pass_at_k(outcome.samples, outcome.passed, k)
        for outcome in outcomes
        if task in (None, outcome.task) and outcome.samples >= k
    ]
    if not values:
        return Score(k=k, task=task, prompts=0, value=None, low=None, high=None)
    low, high = bootstrap_interval(values, resamples, seed)
    return Score(k=k, task=task, prompts=len(values), value=fmean(values), low=low, high=high)


def _sample(context: StageContext, prompts: Sequence[Prompt], version: int) -> list[Rollout]:
    config, settings = context.config, context.config.evaluate
    device = setup_torch(config.runtime, context.seed)
    folder = context.input_dir("policy", weights=config.rollout.engine != "endpoint")
    tokenizer = load_tokenizer(folder, trust_remote_code=config.model.trust_remote_code)
    # The run's seed, not the label's: before and after draw with the same random numbers, so a policy that did not
    # change scores exactly the same.
    samples = plan_samples(tokenizer, prompts, settings.samples, seed=config.seed, prefix="eval")
    limit = config.rollout.max_new_tokens
    longest = max(len(sample.request.input_ids) for sample in samples) + limit
    engine = open_engine(
        folder,
        model=config.model,
        rollout=config.rollout,
        device=device,
        max_length=longest,
        digest=context.inputs["policy"].digest,
        label=f"{context.run_id}: {context.title}",
    )
    drawn = sample_prompts(engine, tokenizer, samples, Sampling(settings.temperature, limit), policy_version=version)
    rows: Iterator[Rollout] = progress(drawn, len(samples), context.title, "samples")
    place = {sample.request.request_id: index for index, sample in enumerate(samples)}
    return sorted(rows, key=lambda row: place[row.sample_id])


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("evaluate")
