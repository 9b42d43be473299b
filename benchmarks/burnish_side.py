"""Burnish's half of the comparison: one round, its stages as they are, each in a process of its own as in a pod.

Artifacts go through a store in a folder. Rewards are written here, by the same rule as on the other side.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workload import Workload, reward_of

from burnish.contracts.artifacts import Kind, Lineage
from burnish.contracts.parquet import read_records, write_records
from burnish.contracts.records import Prompt, Reward, Rollout
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.store import ArtifactStore, open_store

ROUND = ("rollout", "logprob", "update")
_TASK = "side-by-side"


def run_round(work: Workload, folder: Path, *, share_prompt: bool, one_process: bool) -> dict[str, Any]:
    """Run one round in the empty `folder` and return its figures: seconds by phase, overhead, peak memory, lengths.

    `one_process` runs the stages in this process, which is quicker and says nothing about memory.
    """
    environment = {"BURNISH_STORE": str(folder / "store"), "BURNISH_CACHE": str(folder / "cache")}
    os.environ |= environment
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    store = open_store()
    manifests = folder / "manifests"
    manifests.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(_config(work, share_prompt), "utf-8")
    _publish_inputs(work, store, folder)
    stages: dict[str, dict[str, Any]] = {}
    for stage in ROUND:
        if stage == "update":
            _publish_rewards(store, folder)
        stages[stage] = _run(stage, config, manifests, work.clock, one_process)
    seconds = {phase: value for stage in stages.values() for phase, value in stage["seconds"].items()}
    return {
        "steps": [seconds],
        "overhead": sum(stage["overhead"] for stage in stages.values()),
        "peak_mb": max(stage["peak_mb"] for stage in stages.values()),
        "lengths": sorted({(len(row.input_ids), len(row.response_ids)) for row in _rollouts(store, folder)}),
        "stages": stages,
    }


def _run(stage: str, config: Path, manifests: Path, clock: str, one_process: bool) -> dict[str, Any]:
    if one_process:
        import burnish_stage

        return burnish_stage.run(stage, config, manifests, clock)
    script = Path(__file__).with_name("burnish_stage.py")
    command = [sys.executable, str(script), stage, str(config), str(manifests), clock]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: stage {stage} failed")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _config(work: Workload, share_prompt: bool) -> str:
    return f"""\
name: {_TASK}
seed: {work.seed}
rounds: 1
model: {{path: char}}
tasks: [{{source: sums, name: {_TASK}}}]
sft: {{enabled: false}}
rollout:
  prompts_per_round: {len(work.prompts)}
  samples_per_prompt: {work.samples_per_prompt}
  max_new_tokens: {work.new_tokens}
  temperature: {work.temperature}
update:
  preset: grpo
  steps: 1
  learning_rate: {work.learning_rate}
  kl: {{coef: {work.kl_coef}}}
  loss: {{clip_low: {work.clip}, clip_high: {work.clip}}}
  max_grad_norm: {work.max_grad_norm}
  share_prompt: {str(share_prompt).lower()}
runtime: {{device: cpu, threads: {work.threads}}}
"""


def _publish_inputs(work: Workload, store: ArtifactStore, folder: Path) -> None:
    prompts = [
        Prompt(
            prompt_id=f"p{index}",
            task=_TASK,
            split="train",
            messages=[{"role": "user", "content": text}] if work.chat else None,
            text=None if work.chat else text,
            verifier={"kind": "exact", "answer": ""},
        )
        for index, text in enumerate(work.prompts)
    ]
    for name in ("prompts", "trainer_state", "critic", "verdict"):
        (folder / name).mkdir()
    write_records(folder / "prompts" / "prompts.parquet", prompts, Prompt)
    (folder / "trainer_state" / "state.json").write_text('{"step": 0}', "utf-8")
    (folder / "verdict" / VERDICT_FILE).write_text(Verdict().model_dump_json(), "utf-8")
    _publish(store, folder, "prompts", "prompts", folder / "prompts", {})
    _publish(store, folder, "policy", "policy", Path(work.policy), {"policy_version": 0})
    _publish(store, folder, "reference", "policy", Path(work.reference), {"policy_version": 0})
    _publish(store, folder, "trainer_state", "trainer_state", folder / "trainer_state", {"step": 0})
    _publish(store, folder, "critic", "critic", folder / "critic", {})
    _publish(store, folder, "verdict", "verdict", folder / "verdict", Verdict().metadata)


def _publish_rewards(store: ArtifactStore, folder: Path) -> None:
    seen: dict[str, int] = {}
    rewards = []
    for row in sorted(_rollouts(store, folder), key=lambda row: row.sample_id):
        place = seen[row.group_id] = seen.get(row.group_id, -1) + 1
        rewards.append(Reward(sample_id=row.sample_id, components={"place": reward_of(place)}, reward=reward_of(place)))
    (folder / "rewards").mkdir()
    write_records(folder / "rewards" / "rewards.parquet", rewards, Reward)
    _publish(store, folder, "rewards", "rewards", folder / "rewards", {})


def _publish(store: ArtifactStore, folder: Path, name: str, kind: Kind, files: Path, metadata: dict[str, Any]) -> None:
    manifest = store.put_artifact(kind, files, lineage=Lineage(stage="benchmark"), counts={}, metadata=metadata)
    (folder / "manifests" / f"{name}.json").write_text(manifest.to_json(), "utf-8")


def _rollouts(store: ArtifactStore, folder: Path) -> list[Rollout]:
    (record,) = (record for record in store.run_records("benchmark") if record.stage == "rollout")
    target = folder / "rollouts"
    if not target.exists():
        store.fetch(store.get_manifest(record.outputs["rollouts"]), target)
    return read_records(target / "rollouts.parquet", Rollout)
