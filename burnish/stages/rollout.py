"""rollout: draw completions of this round's prompts with the current policy, token ids and logprobs as drawn.

Which prompts a round gets follows from the seed and the round's number alone, so nothing has to be carried along.
"""

import random
import time
from collections.abc import Sequence

from burnish.contracts.config import TaskConfig
from burnish.contracts.errors import StageError
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt, Rollout
from burnish.models.engine import Sampling, open_engine
from burnish.models.load import load_tokenizer
from burnish.models.probe_weights import check_weights, read_probe
from burnish.models.runtime import setup_torch
from burnish.models.sampling import plan_samples, sample_prompts
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import progress
from burnish.stages.rollout_figures import RolloutTally


def run(context: StageContext) -> StageResult:
    """Write `rollouts.parquet`: `samples_per_prompt` rows for each of `prompts_per_round` prompts, or of a shard's.

    Raises StageError when a task has no training prompts, the engine does not run the policy's weights, or not one
    sample could be drawn.
    """
    config, settings = context.config, context.config.rollout
    device = setup_torch(config.runtime, context.seed)
    prompts = read_records(context.input_dir("prompts") / "prompts.parquet", Prompt)
    number = context.round or 1
    chosen = choose_prompts(prompts, config.tasks, per_round=settings.prompts_per_round, round=number, seed=config.seed)
    folder = context.input_dir("policy", weights=settings.engine != "endpoint")
    tokenizer = load_tokenizer(folder, trust_remote_code=config.model.trust_remote_code)
    samples = plan_samples(tokenizer, chosen, settings.samples_per_prompt, seed=context.seed, prefix=f"r{number}")
    probe = read_probe(folder)
    lengths = [len(sample.request.input_ids) + settings.max_new_tokens for sample in samples]
    # An engine that scores draws at least one token more.
    lengths += [len(sample.input_ids) + len(sample.response_ids) + 1 for sample in probe]
    own = context.own(sample.group_id for sample in samples)
    samples = [sample for sample in samples if sample.group_id in own]
    engine = open_engine(
        folder,
        model=config.model,
        rollout=settings,
        device=device,
        max_length=max(lengths),
        digest=context.inputs["policy"].digest,
        label=f"{context.run_id}: {context.title}",
    )
    sampling = Sampling(settings.temperature, settings.max_new_tokens, settings.top_p, settings.top_k)
    gap = check_weights(
        engine, probe, dtype=config.model.dtype, tolerance=settings.probe_tolerance, title=context.title
    )
    version = int(context.inputs["policy"].metadata["policy_version"])
    started = time.perf_counter()
    drawn = sample_prompts(engine, tokenizer, samples, sampling, policy_version=version)
    rows = list(progress(drawn, len(samples), context.title, "samples"))
    seconds = time.perf_counter() - started
    # A shard may be unlucky; whether anything was drawn at all shows when shards are gathered.
    if not rows and not context.shard:
        raise StageError(
            f"{context.title}: all {len(samples)} samples were aborted: the policy's logits are not finite"
        )
    # Rows finish in an order that depends on the batch size; the artifact does not.
    place = {sample.request.request_id: index for index, sample in enumerate(samples)}
    rows.sort(key=lambda row: place[row.sample_id])
    tally = RolloutTally()
    write_records(context.output_dir("rollouts") / "rollouts.parquet", tally.counting(rows), Rollout)
    return StageResult(
        metrics=tally.metrics(aborted=float(len(samples) - len(rows)), seconds=seconds) | {"probe_gap": gap},
        counts={"rollouts": tally.counts()},
        metadata={"rollouts": {"policy_version": version}},
    )


def choose_prompts(
    prompts: Sequence[Prompt], tasks: Sequence[TaskConfig], *, per_round: int, round: int, seed: int
) -> list[Prompt]:
    """The prompts of `round` (from 1): each task in a seeded order, walked on from round to round, epoch by epoch.

    Tasks take turns by weight; within a task every training prompt is used once before any is used again.
    Raises StageError when a task has no training prompts.
    """
    pools: dict[str, list[Prompt]] = {task.title: [] for task in tasks}
    for prompt in prompts:
        if prompt.split == "train" and prompt.task in pools:
            pools[prompt.task].append(prompt)
    for title, pool in pools.items():
        if not pool:
            raise StageError(f"task {title!r} has no training prompts; set its train_size")
        pool.sort(key=lambda prompt: prompt.prompt_id)
    turns = _turns([task.weight for task in tasks], (round - 1) * per_round, round * per_round)
    titles = [task.title for task in tasks]
    return [_nth_prompt(pools[titles[task]], use, titles[task], seed) for task, use in turns]


def _turns(weights: Sequence[float], start: int, stop: int) -> list[tuple[int, int]]:
    """(task, how often it was used before) for the turns from `start` to `stop` of an endless sequence.

    Webster's method: the next turn goes to the task with the least (uses + 1/2) / weight, so at every point the
    shares are as near to the weights as whole numbers allow.
    """
    uses = [0] * len(weights)
    turns = []
    for turn in range(stop):
        task = min(range(len(weights)), key=lambda index: ((uses[index] + 0.5) / weights[index], index))
        if turn >= start:
            turns.append((task, uses[task]))
        uses[task] += 1
    return turns


def _nth_prompt(pool: list[Prompt], use: int, title: str, seed: int) -> Prompt:
    epoch, place = divmod(use, len(pool))
    order = list(range(len(pool)))
    random.Random(f"{seed}/{title}/{epoch}").shuffle(order)
    return pool[order[place]]


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("rollout")
