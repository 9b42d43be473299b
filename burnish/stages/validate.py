"""Find what is wrong with a run before anything expensive starts, and settle its prompts.

Everything here needs seconds and no torch: settings that contradict each other, tasks that do not load, scorers that
do not exist, a model that cannot be meant.
"""

import difflib
import re
from collections import Counter
from pathlib import Path

from burnish.contracts.config import RunConfig
from burnish.contracts.cost import RESOURCES_VARIABLE, CostConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import dump_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Prompt
from burnish.contracts.stages import check_task_budget
from burnish.models.packaged import PACKAGED, cache_folder
from burnish.rewards.format import FormatParams
from burnish.rewards.scorer import APPLIES_TO, check_scorers, default_scorers
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce
from burnish.stages.sft_data import read_demonstrations
from burnish.tasks import load_task
from burnish.track.load import asked_resources

_HUGGING_FACE_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

# A critic that is slower than the policy judges a policy of long ago; one that is far faster forgets.
_CRITIC_LR_RATIO = 100


def run(context: StageContext) -> StageResult:
    """Writes config.yaml (resolved) and prompts.parquet. Raises ConfigError for the first thing that is wrong."""
    config = context.config
    prompts = check(config)
    (context.output_dir("resolved") / "config.yaml").write_text(dump_config(config), "utf-8")
    rows = write_records(context.output_dir("prompts") / "prompts.parquet", prompts, Prompt)
    counted = Counter((prompt.task, prompt.split) for prompt in prompts)
    splits = Counter(prompt.split for prompt in prompts)
    return StageResult(
        metrics={f"prompts/{task}/{split}": float(count) for (task, split), count in sorted(counted.items())},
        counts={"prompts": {"rows": rows} | {str(split): count for split, count in splits.items()}},
    )


def check(config: RunConfig) -> list[Prompt]:
    """The run's prompts, once everything about `config` has been found in order. Raises ConfigError."""
    check_task_budget(config.rounds, config.rollout.shards, config.execute_shards)
    _check_sampling(config)
    _check_model(config.model.path, "model.path")
    _check_algorithm(config)
    _check_critic(config)
    _check_budget(config.cost)
    check_scorers(config.reward)
    prompts = [prompt for task in config.tasks for prompt in load_task(task, config.seed)]
    prompts += _demonstrations(config, prompts)
    _check_rewards(config, prompts)
    _check_think_tags(config)
    if config.model.path == "char":
        _check_characters(prompts)
    if not any(prompt.split == "eval" for prompt in prompts):
        announce("no task has held-out prompts (eval_size is 0): evaluation will have nothing to say")
    return prompts


def _check_sampling(config: RunConfig) -> None:
    why = "truncated sampling biases the importance ratio of every token; train on the full distribution"
    if config.rollout.top_p < 1:
        raise ConfigError(f"rollout.top_p is {config.rollout.top_p}: {why} (rollout.top_p=1)")
    if config.rollout.top_k > 0:
        raise ConfigError(f"rollout.top_k is {config.rollout.top_k}: {why} (rollout.top_k=0)")
    if config.reward.overlong_buffer > config.rollout.max_new_tokens:
        raise ConfigError(
            f"reward.overlong_buffer is {config.reward.overlong_buffer}: it must not exceed "
            f"rollout.max_new_tokens={config.rollout.max_new_tokens}"
        )


def _check_algorithm(config: RunConfig) -> None:
    """Choices that contradict each other, which the update would find only after the first rollouts."""
    update = config.update
    estimator, loss = update.advantage.estimator, update.loss
    if config.rollout.samples_per_prompt == 1 and estimator not in ("reinforce_pp", "gae"):
        raise ConfigError(
            f"rollout.samples_per_prompt is 1: {estimator!r} compares the samples of a group, so every advantage would "
            "be 0; use at least 2, or update.advantage.estimator=reinforce_pp"
        )
    if estimator == "gdpo" and update.kl.coef and update.kl.place == "reward":
        raise ConfigError(
            "update.kl.place is 'reward': gdpo normalises each component of the reward, which undoes the weight of a "
            "KL term; use update.kl.place=loss"
        )
    if estimator == "maxrl" and config.reward.overlong_buffer:
        raise ConfigError(
            f"reward.overlong_buffer is {config.reward.overlong_buffer}: maxrl divides by a group's mean and cannot "
            "have negative rewards; set it to 0"
        )
    if loss.dual_clip and (loss.surrogate != "clip" or loss.dual_clip <= 1):
        raise ConfigError(
            f"update.loss.dual_clip is {loss.dual_clip}: it bounds the loss of surrogate 'clip' and must be above 1; "
            "3 is usual, 0 turns it off"
        )
    if loss.ratio == "sequence" and loss.surrogate == "clip" and (loss.clip_high or 0.0) > 0.05:
        announce(
            f"update.loss.clip_high is {loss.clip_high} for a ratio of whole sequences, which hardly ever moves that "
            "far: nothing will be clipped; GSPO uses 3e-4 and 4e-4"
        )


def _check_critic(config: RunConfig) -> None:
    update, critic = config.update, config.update.critic
    if not update.needs_critic:
        return
    if critic.init != "policy":
        _check_model(critic.init, "update.critic.init")
    if critic.shared:
        if critic.init != "policy":
            raise ConfigError(
                f"update.critic.init is {critic.init!r} but update.critic.shared is true: a shared critic has the "
                "policy's layers; set one of them back"
            )
        if critic.epochs > 1:
            raise ConfigError(
                f"update.critic.epochs is {critic.epochs} but update.critic.shared is true: a shared critic learns in "
                "the policy's passes; use update.epochs"
            )
        if config.runtime.processes > 1:
            raise ConfigError(
                f"runtime.processes is {config.runtime.processes} but update.critic.shared is true: layers that are "
                "spread over processes serve one head only; set one of them back"
            )
    adaptive = update.advantage.length_adaptive or 0.0
    if 0 < adaptive * config.rollout.max_new_tokens <= 1:
        announce(
            f"update.advantage.length_adaptive={adaptive:g} makes lambda 0 for responses of up to {1 / adaptive:.0f} "
            f"tokens, and none is longer than rollout.max_new_tokens={config.rollout.max_new_tokens}: only the last "
            "token would learn of the reward; set it to 0 for short responses"
        )
    ratio = update.critic_lr_ratio
    if ratio is not None and not 1 <= ratio <= _CRITIC_LR_RATIO:
        announce(
            f"update.critic.learning_rate={critic.learning_rate:g} is {ratio:g} times update.learning_rate="
            f"{update.learning_rate:g}: a critic usually learns 1 to {_CRITIC_LR_RATIO} times as fast as its policy"
        )


def _check_budget(cost: CostConfig) -> None:
    if cost.budget is None:
        return
    if not cost.priced:
        raise ConfigError(
            f"cost.budget is {cost.budget:g} but nothing has a price; set cost.gpu_hour, cost.cpu_hour or both"
        )
    if not asked_resources():
        announce(
            f"cost.budget is not held: nobody says what stages take here; set {RESOURCES_VARIABLE}, which a cluster's "
            "placement sets by itself"
        )


def _check_model(path: str, field: str) -> None:
    if path == "char" or path in PACKAGED:
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{field} is {path!r}: the folder has no config.json; give a Hugging Face model folder")
        return
    local = path.startswith(("/", "./", "../", "~"))
    if not local and _HUGGING_FACE_ID.fullmatch(path):
        return
    nearest = difflib.get_close_matches(path, [*PACKAGED, "char"], n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    forms = f"a packaged name ({', '.join(PACKAGED)}), `char`, a local folder, or a Hugging Face id such as org/name"
    problem = "no such folder; it must be" if local else "it must be"
    raise ConfigError(f"{field} is {path!r}: {problem} {forms}{hint}")


def _demonstrations(config: RunConfig, prompts: list[Prompt]) -> list[Prompt]:
    """The rows of sft.data, if any; raises ConfigError when there is nothing to imitate."""
    if not config.sft.enabled:
        return []
    if config.sft.data is None:
        if not any(prompt.split == "sft" for prompt in prompts):
            raise ConfigError(
                "sft.enabled is true but there is nothing to imitate: set tasks.0.sft_size (and so on) above 0, "
                "give sft.data, or set sft.enabled=false"
            )
        return []
    rows = read_demonstrations(Path(config.sft.data))
    held_out = {_question(prompt) for prompt in prompts if prompt.split == "eval"}
    for row in rows:
        if _question(row) in held_out:
            raise ConfigError(
                f"sft.data: row {row.prompt_id} asks the same as a held-out prompt, which evaluation would then "
                "measure from memory; leave it out"
            )
    return rows


def _question(prompt: Prompt) -> str:
    """The last thing asked, without case and spacing."""
    text = prompt.text if prompt.messages is None else prompt.messages[-1]["content"]
    return " ".join((text or "").casefold().split())


def _check_rewards(config: RunConfig, prompts: list[Prompt]) -> None:
    kinds = {str(prompt.verifier.get("kind")): prompt.task for prompt in prompts if prompt.split != "sft"}
    default_scorers(sorted(kinds))
    weighted = [scorer for scorer in config.reward.scorers if scorer.weight]
    for kind, task in kinds.items() if config.reward.scorers else ():
        if not any(kind in APPLIES_TO.get(scorer.name, {kind}) for scorer in weighted):
            raise ConfigError(
                f"reward.scorers has nothing with a weight for task {task!r}, whose answers are checked by {kind!r}; "
                f"add {{name: {kind}}}, or leave reward.scorers empty"
            )


def _check_think_tags(config: RunConfig) -> None:
    """A tag of several tokens can be half generated, and masks or flags that count it go wrong."""
    tags = [
        tag
        for scorer in config.reward.scorers
        if scorer.name == "format"
        for tag in FormatParams.model_validate(scorer.params).think or ()
    ]
    if not tags:
        return
    folder = _local_model(config.model.path)
    if folder is None or not (folder / "tokenizer.json").is_file():
        announce(f"think tags {', '.join(tags)} not checked: the tokenizer of {config.model.path} is not here yet")
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for tag in tags:
        tokens = tokenizer.encode(tag, add_special_tokens=False).tokens
        if len(tokens) != 1:
            raise ConfigError(
                f"scorer 'format': params.think: {tag!r} is {len(tokens)} tokens for {config.model.path}; "
                "choose a pair that the tokenizer has as one token each"
            )


def _local_model(path: str) -> Path | None:
    if path in PACKAGED:
        folder = cache_folder() / "models" / f"{path}-{PACKAGED[path][2]}"
    else:
        folder = Path(path).expanduser()
    return folder if folder.is_dir() else None


def _check_characters(prompts: list[Prompt]) -> None:
    """The character model has no chat template and knows printable ASCII and newline."""
    for prompt in prompts:
        if prompt.text is None:
            raise ConfigError(
                f"task {prompt.task!r}: model `char` continues raw text and has no chat template; "
                "set params.style=raw where the source has it"
            )
        for character in prompt.text + (prompt.demonstration or ""):
            if character != "\n" and not (character.isascii() and character.isprintable()):
                raise ConfigError(
                    f"task {prompt.task!r}: model `char` does not know the character {character!r} of prompt "
                    f"{prompt.prompt_id}; it knows printable ASCII and newline"
                )


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("validate")
