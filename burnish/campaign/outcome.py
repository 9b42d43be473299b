"""What a chunk left in the store: the records of its stages say whether it is done, whoever ran them."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.contracts.algorithm import CollapseConfig
from burnish.contracts.artifacts import Lineage, StageRecord, stage_title
from burnish.contracts.campaign import Chunk, Outcome, RoundFigures
from burnish.contracts.cost import CostConfig, run_cost
from burnish.contracts.verdict import VERDICT_FILE, Verdict
from burnish.store import ArtifactStore

_FIGURES = {
    "reward": (("reward", "reward/mean"),),
    "kl": (("logprob", "kl_ref"), ("update", "kl")),
    "entropy": (("logprob", "entropy"),),
    "response_length": (("rollout", "response_length_mean"),),
}
"""(stage, metric) of each figure, the first that was measured."""


def read_outcome(store: ArtifactStore, chunk: Chunk, cost: CostConfig) -> Outcome | None:
    """What `chunk` ended with; None while anything is missing. Raises StoreError."""
    records = store.run_records(chunk.run_id)
    by_title = {record.title: record for record in records if not record.error}
    start = by_title.get("sft")
    last = by_title.get(stage_title("update", chunk.last_round))
    after = by_title.get(stage_title("evaluate", label="after"))
    before = by_title.get(stage_title("evaluate", label="before"))
    if not (start and last and after and before):
        return None
    verdict = store.get_manifest(last.outputs["updated_verdict"]).metadata
    trained = [record.round for record in records if record.stage == "update" and record.round and not record.skipped]
    collapsed = verdict["status"] == "stop"
    stops = [record.stop_reason for record in records if record.stop_reason]
    return Outcome(
        policy=last.outputs["updated_policy"],
        trainer_state=last.outputs["updated_trainer_state"],
        critic=last.outputs["updated_critic"],
        verdict=last.outputs["updated_verdict"],
        reference=chunk.start.reference or start.outputs["policy"],
        collapsed=collapsed,
        reasons=list(verdict["reasons"]) if collapsed else stops[:1],
        last_round=max(trained, default=chunk.start.round),
        evaluation=after.outputs["evaluation"] if chunk.evaluated else "",
        before=_pass_at_k(before),
        after=_pass_at_k(after),
        rounds=[_figures(round, records) for round in sorted(trained)],
        seconds=_busy_seconds(records),
        cost=run_cost(records, cost),
    )


def gentler_verdict(store: ArtifactStore, digest: str, settings: CollapseConfig) -> str:
    """Digest of the verdict that a roll-back goes on with: that of `digest` without its history, and gentler.

    The same verdict gives the same digest.
    """
    stopped = store.get_manifest(digest)
    with tempfile.TemporaryDirectory(prefix="burnish-verdict-") as folder:
        store.fetch(stopped, Path(folder) / "stopped")
        verdict = Verdict.from_json((Path(folder) / "stopped" / VERDICT_FILE).read_bytes(), digest)
        gentler = verdict.model_copy(
            update={
                "status": "rolled_back",
                # The figures of what was undone are no measure of what comes.
                "history": [],
                "lr_factor": verdict.lr_factor * settings.lr_factor,
                "clip_factor": verdict.clip_factor * settings.clip_factor,
            }
        )
        (Path(folder) / "gentler").mkdir()
        (Path(folder) / "gentler" / VERDICT_FILE).write_text(gentler.model_dump_json(), "utf-8")
        lineage = Lineage(stage="campaign", round=verdict.round, inputs={"verdict": digest})
        metadata = gentler.metadata
        return store.put_artifact(
            "verdict", Path(folder) / "gentler", lineage=lineage, counts={}, metadata=metadata
        ).digest


def _figures(round: int, records: Sequence[StageRecord]) -> RoundFigures:
    metrics: Mapping[str, Mapping[str, float | None]] = {
        record.stage: record.metrics for record in records if record.round == round and not record.shard
    }
    found = {
        name: next((value for stage, key in sources if (value := metrics.get(stage, {}).get(key)) is not None), None)
        for name, sources in _FIGURES.items()
    }
    return RoundFigures(round=round, **found)


def _pass_at_k(record: StageRecord) -> dict[str, float]:
    return {
        name: value
        for name, value in record.metrics.items()
        if name.startswith("pass@") and "/" not in name and value is not None
    }


def _busy_seconds(records: Sequence[StageRecord]) -> float:
    """Length of the union of the stages' times: a night between two attempts does not count."""
    total, until = 0.0, 0.0
    for began, ended in sorted((record.started_at, record.finished_at) for record in records):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
