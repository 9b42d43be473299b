"""Inputs of the logprob and update stages on a tiny model, and contexts to run them in without a store."""

import dataclasses
import hashlib
import json
import random
import shutil
from pathlib import Path

import torch

from burnish.contracts.artifacts import Blob, Lineage, Manifest
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Logprob, Reward, Rollout
from burnish.contracts.stages import STAGES
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.models.char import make_char_model
from burnish.models.load import load_policy
from burnish.stages import logprob, update
from burnish.stages.entry import StageContext


def config_of(model=None, collapse=None, **update_fields):
    return parse_config(
        {
            "rounds": 3,
            "model": {"path": "char", **(model or {})},
            "rollout": {"max_new_tokens": 8},
            "update": {"learning_rate": 1e-2, **update_fields},
            "collapse": collapse or {},
            "runtime": {"threads": 1, "device": "cpu", "processes": 1},
        }
    )


def manifest_of(kind, folder, **metadata):
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    blobs = [
        Blob(
            path=str(path.relative_to(folder)),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            size=path.stat().st_size,
        )
        for path in files
    ]
    return Manifest(kind=kind, blobs=blobs, lineage=Lineage(stage="test"), metadata=metadata)


class Workplace:
    """Folders of artifacts, by name; `run` runs a stage on them and keeps what it wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = {}
        self.seeds = {}

    def folder(self, name):
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run(self, module, name, config, *, round=1, renamed=None):
        """`renamed` maps the stage's input names to folders here."""
        stage = STAGES[name]
        source = {key: self.folder((renamed or {}).get(key, key)) for key in stage.reads}
        manifests = {
            key: manifest_of(kind, source[key], **self.versions.get(source[key].name, {"policy_version": 0}))
            for key, kind in stage.reads.items()
        }
        work = self.path / "work" / f"{name}-{len(list((self.path / 'work').glob('*')))}"
        for key, folder in source.items():
            shutil.copytree(folder, work / "in" / key)
        context = StageContext(stage, config.view(stage.sections), "r", round, "", None, manifests, work)
        self.seeds[round] = context.seed
        result = module.run(context)
        for key in stage.writes:
            if key in result.reused:
                (again,) = (name for name, manifest in manifests.items() if manifest.digest == result.reused[key])
                shutil.rmtree(self.path / key, ignore_errors=True)
                shutil.copytree(source[again], self.path / key)
                self.versions[key] = manifests[again].metadata
                continue
            shutil.rmtree(self.path / key, ignore_errors=True)
            shutil.copytree(work / "out" / key, self.path / key)
            self.versions[key] = result.metadata.get(key, {})
        return result

    def logprob(self, config, **names):
        return self.run(logprob, "logprob", config, **names)

    def update(self, config, **names):
        return self.run(update, "update", config, **names)

    def weights(self, name):
        return {key: value.detach().clone() for key, value in load_policy(self.path / name).model.named_parameters()}


def make_workplace(path: Path, *, groups=4, samples=4, seed=0, temperature=1.0) -> Workplace:
    """A char model, rollouts with its own logprobs, rewards that differ inside each group, an empty trainer state."""
    work = Workplace(path)
    for name in ("policy", "reference"):
        make_char_model(work.folder(name), layers=1, width=32, seed=3)
    (work.folder("trainer_state") / "state.json").write_text(json.dumps({"step": 0}))
    (work.folder("verdict") / VERDICT_FILE).write_text(Verdict().model_dump_json())
    write_rollouts(work, make_rollouts(work, groups=groups, samples=samples, seed=seed, temperature=temperature))
    return work


def make_rollouts(work, *, groups=4, samples=4, seed=0, temperature=1.0):
    chance = random.Random(seed)
    model = load_policy(work.path / "policy").model
    rollouts = []
    for group in range(groups):
        prompt = [chance.randrange(3, 90) for _ in range(chance.randint(3, 9))]
        for sample in range(samples):
            response = [chance.randrange(3, 90) for _ in range(chance.randint(1, 8))]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            sampled = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
            rollouts.append(
                Rollout(
                    sample_id=f"g{group}s{sample}",
                    episode_id=f"g{group}s{sample}",
                    turn=0,
                    group_id=f"g{group}",
                    prompt_id=f"p{group}",
                    task="sums",
                    policy_version=0,
                    input_ids=prompt,
                    response_ids=response,
                    loss_mask=[1] * len(response),
                    rollout_logprobs=sampled.tolist(),
                    finish_reason="stop",
                    temperature=temperature,
                    top_p=1.0,
                    top_k=0,
                    seed=seed,
                    logprobs_mode="processed",
                    prompt_text="",
                    text="",
                )
            )
    return rollouts


def write_rollouts(work, rollouts, rewards=None):
    """`rewards` by sample_id; by default sample k of a group gets k."""
    write_records(work.folder("rollouts") / "rollouts.parquet", rollouts, Rollout)
    if rewards is None:
        rewards = {rollout.sample_id: float(rollout.sample_id[-1]) for rollout in rollouts}
    write_rewards(work, rewards)


def write_rewards(work, rewards):
    rows = [Reward(sample_id, {"exact": value}, value) for sample_id, value in rewards.items()]
    write_records(work.folder("rewards") / "rewards.parquet", rows, Reward)


def read_rollouts(work):
    return read_records(work.path / "rollouts" / "rollouts.parquet", Rollout)


def read_logprobs(work):
    return read_records(work.path / "logprobs" / "logprobs.parquet", Logprob)


def write_logprobs(work, logprobs):
    write_records(work.folder("logprobs") / "logprobs.parquet", logprobs, Logprob)


def changed(rollout, **fields):
    return dataclasses.replace(rollout, **fields)
