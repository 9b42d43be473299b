"""sft: cold start on demonstrations; the result is policy version 0 and an empty trainer state.

Without demonstrations the base model passes through unchanged; a run that goes on from an earlier one takes that one's.
"""

import json

import torch

from burnish.contracts.errors import ConfigError, ContractError
from burnish.contracts.parquet import iter_records
from burnish.contracts.records import Prompt
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.models.load import copy_policy, load_trainable, resolve_base_model
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.models.runtime import setup_torch
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce
from burnish.stages.ranks import train_on_ranks
from burnish.stages.sft_batches import build_examples
from burnish.stages.sft_data import SFT_DATA
from burnish.stages.sft_training import Training

# The base model's folder, as the stage's process found or made it.
_BASE = "base"


def run(context: StageContext) -> StageResult:
    """Write `policy` (version 0) and `trainer_state` (step 0), or pass on what `start` names.

    Raises ConfigError when the base model cannot be found, ContractError when `start` names something else than a
    policy and what belongs to it, StageError when the loss stops being finite.
    """
    config = context.config
    if config.start.policy:
        return _go_on(context)
    base = resolve_base_model(config.model, seed=config.seed, scratch=context.workdir)
    (context.output_dir("trainer_state") / "state.json").write_text(json.dumps({"step": 0}), "utf-8")
    (context.output_dir("verdict") / VERDICT_FILE).write_text(Verdict().model_dump_json(), "utf-8")
    context.output_dir("critic")
    if config.sft.enabled and _demonstrations(context):
        (context.workdir / _BASE).symlink_to(base.resolve(), target_is_directory=True)
        result = train_on_ranks(context, train)
    else:
        announce(f"{context.title}: no demonstrations, the base model is the first policy")
        copy_policy(base, context.output_dir("policy"), trust_remote_code=config.model.trust_remote_code)
        result = StageResult()
    result.metadata = {"policy": {"policy_version": 0}, "trainer_state": {"step": 0}, "verdict": Verdict().metadata}
    return result


def _go_on(context: StageContext) -> StageResult:
    """The outputs of the earlier run; nothing is downloaded."""
    start = context.config.start
    announce(f"{context.title}: goes on from the policy of round {start.round}")
    digests = {name: str(getattr(start, name)) for name in context.stage.writes}
    for name, digest in digests.items():
        found = context.store.get_manifest(digest)
        if found.kind != context.stage.writes[name]:
            raise ContractError(f"start.{name} is {digest}: that is a {found.kind}; give the digest of a {name}")
        if found.metadata.get("stopped"):
            raise ContractError(f"start.{name} is {digest}: that run was stopped by it, and so would this one be")
    return StageResult(reused=digests)


def train(context: StageContext, ranks: Ranks) -> StageResult:
    """Train the base model on the demonstrations, as one of `ranks`; the first of them writes `policy`."""
    config = context.config
    device = setup_torch(config.runtime, context.seed)
    base = context.workdir / _BASE
    model, tokenizer, eos_token_ids = load_trainable(
        base, config.model, device=device if ranks.world == 1 else "cpu", seed=context.seed
    )
    examples = build_examples(
        tokenizer,
        _demonstrations(context),
        eos_token_ids,
        max_length=config.sft.max_length,
        validation_fraction=config.sft.validation_fraction,
        seed=config.seed,
    )
    if not examples.train:
        raise ConfigError(f"sft.max_length is {config.sft.max_length}: every demonstration is longer; raise it")
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    policy = ParallelPolicy(model, ranks, device=device, dtype=dtype)
    policy.take_probe(examples.train)
    training = Training(policy, config.sft, examples, seed=config.seed)
    training.fit(context.title)
    policy.save(context.output_dir("policy"), tokenizer, source=base, trust_remote_code=config.model.trust_remote_code)
    counts = {"policy": {"demonstrations": len(examples.train) + len(examples.validation)}}
    return StageResult(training.metrics(), training.series, counts)


def _demonstrations(context: StageContext) -> list[Prompt]:
    """Rows to imitate; those of the file that sft.data names replace the tasks' own."""
    from_file = context.config.sft.data is not None
    rows = iter_records(context.input_dir("prompts") / "prompts.parquet", Prompt)
    return [row for row in rows if row.split == "sft" and row.demonstration and (row.task == SFT_DATA) == from_file]


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("sft")
