"""report: the run as one HTML page, a short Markdown text and a JSON summary, from whatever the run left behind.

It is the pipeline's exit handler: after a failure it shows what failed, and what is missing is said, not raised.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError
from burnish.contracts.evaluation import Evaluation
from burnish.contracts.loading import dump_config
from burnish.contracts.parquet import RecordT, read_records
from burnish.contracts.records import Execution, Logprob, Reward, Rollout
from burnish.report.page import render_page
from burnish.report.run import RunView, Sample, SampleSet, join_samples, sample_stats, token_disputes
from burnish.report.selection import select_samples
from burnish.report.summary import markdown, run_status, summarise
from burnish.report.tokens import read_token_texts
from burnish.stages.entry import StageContext, StageResult
from burnish.stages.progress import announce
from burnish.store import ArtifactStore
from burnish.track.model import final_policy
from burnish.track.sync import sync_run

PAGE = "report.html"


def run(context: StageContext) -> StageResult:
    """Write report.html, report.md and summary.json, and bring MLflow up to date."""
    view = collect_run(context.store, context.run_id, context.config, context.workdir / "collected")
    for note in view.notes:
        announce(f"report: {note}")
    folder = context.output_dir("report")
    write_report(view, folder)
    (folder / "config.yaml").write_text(dump_config(context.config), "utf-8")
    status = run_status(view)
    figures = summarise(view)
    result = sync_run(
        view.records,
        context.run_id,
        context.config,
        # Nothing runs after the exit handler: a run that is not finished by now was killed.
        status="FINISHED" if status in ("finished", "stopped") else "FAILED",
        files=[folder / PAGE, folder / "config.yaml"],
        headline=figures["headline"],
        policy=view.manifests.get(final_policy(view.records) or ""),
    )
    if result and result.problem:
        announce(f"report: MLflow: {result.problem}; {result.left} records are left for the next sync")
    return StageResult(
        metrics={name: figures[name] for name in ("reward_first", "reward_last", "wall_s", "overhead_share")}
        | {"rounds_done": float(figures["rounds_done"])},
        metadata={"report": {"status": status, "headline": figures["headline"]}},
    )


def write_report(view: RunView, folder: Path) -> None:
    """The three files of a report, in `folder`; each appears whole or not at all."""
    texts = {
        PAGE: render_page(view),
        "report.md": markdown(view),
        "summary.json": json.dumps(summarise(view), indent=1, allow_nan=False),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        draft = folder / f".{name}.part"
        draft.write_text(text, "utf-8")
        draft.replace(folder / name)


def collect_run(store: ArtifactStore, run_id: str, config: RunConfig, scratch: Path) -> RunView:
    """Everything a report shows of run `run_id`; what cannot be read becomes a note. Files go under `scratch`."""
    # A report of an earlier attempt is no part of what is reported.
    records = [record for record in store.run_records(run_id) if record.stage != "report"]
    reader = _Reader(store, scratch)
    manifests = {
        digest: manifest
        for record in records
        for digest in record.outputs.values()
        if (manifest := reader.manifest(digest)) is not None
    }
    sample_sets = []
    for record in sorted(records, key=lambda record: (record.round is None, record.round or 0)):
        samples = _samples_of(record, records, reader)
        if samples:
            shown = select_samples(samples, config.report.rollouts_per_round)
            title = f"round {record.round}" if record.round is not None else record.title
            disputes = token_disputes(_logprob_metadata(record, records, manifests), samples)
            sample_sets.append(SampleSet(title, record.round, sample_stats(samples), shown, disputes))
    evaluations = {record.label: found for record in records if (found := reader.evaluation(record)) is not None}
    token_texts = reader.token_texts(records)
    return RunView(run_id, config, records, manifests, evaluations, sample_sets, token_texts, reader.notes)


def _logprob_metadata(
    record: StageRecord, records: Sequence[StageRecord], manifests: Mapping[str, Manifest]
) -> Mapping[str, Any]:
    """What the logprob stage of the same round noted about its artifact."""
    if record.stage == "rollout":
        for found in records:
            if found.stage == "logprob" and found.round == record.round and "logprobs" in found.outputs:
                manifest = manifests.get(found.outputs["logprobs"])
                return manifest.metadata if manifest else {}
    return {}


def _samples_of(record: StageRecord, records: Sequence[StageRecord], reader: "_Reader") -> list[Sample]:
    """The samples a rollout or an evaluation drew, joined with what later stages of its round said about them."""
    if record.stage == "evaluate":
        return join_samples(
            reader.rows(record, "evaluation", Rollout, "samples.parquet"),
            reader.rows(record, "evaluation", Reward, "rewards.parquet"),
            reader.rows(record, "evaluation", Execution, "executions.parquet"),
        )
    if record.stage != "rollout" or record.shard:
        return []
    beside = {found.stage: found for found in records if found.round == record.round and not found.shard}
    return join_samples(
        reader.rows(record, "rollouts", Rollout),
        reader.rows(beside.get("reward"), "rewards", Reward),
        reader.rows(beside.get("execute"), "executions", Execution),
        reader.rows(beside.get("logprob"), "logprobs", Logprob),
    )


class _Reader:
    """Reads artifacts of a run; a failure is noted once per artifact and gives nothing."""

    def __init__(self, store: ArtifactStore, scratch: Path) -> None:
        self.store = store
        self.scratch = scratch
        self.notes: list[str] = []
        self._manifests: dict[str, Manifest | None] = {}

    def manifest(self, digest: str) -> Manifest | None:
        if digest not in self._manifests:
            try:
                self._manifests[digest] = self.store.get_manifest(digest)
            except BurnishError as error:
                self._manifests[digest] = None
                self.notes.append(str(error))
        return self._manifests[digest]

    def rows(
        self, record: StageRecord | None, output: str, row_type: type[RecordT], name: str | None = None
    ) -> list[RecordT]:
        """Rows of the parquet file `name` (None: the only one) of an output."""
        path = self.file(record, output, name or ".parquet")
        try:
            return read_records(path, row_type) if path else []
        except BurnishError as error:
            self.notes.append(f"{record.title if record else output}: {error}")
            return []

    def evaluation(self, record: StageRecord) -> Evaluation | None:
        path = self.file(record, "evaluation", "evaluation.json") if record.stage == "evaluate" else None
        try:
            return Evaluation.from_json(path.read_bytes(), record.title) if path else None
        except BurnishError as error:
            self.notes.append(str(error))
            return None

    def token_texts(self, records: Sequence[StageRecord]) -> dict[int, bytes] | None:
        """From the tokenizer of the first policy there is; all policies of a run share it."""
        for record in records:
            for output in record.outputs:
                path = self.file(record, output, "tokenizer.json")
                if path:
                    try:
                        return read_token_texts(path)
                    except ValueError as error:
                        self.notes.append(str(error))
                        return None
        return None

    def file(self, record: StageRecord | None, output: str, ending: str) -> Path | None:
        """The one file of an output whose path ends with `ending`, without fetching the others."""
        manifest = self.manifest(record.outputs[output]) if record and output in record.outputs else None
        wanted = [blob for blob in manifest.blobs if blob.path.endswith(ending)] if manifest else []
        if manifest is None or not wanted:
            return None
        folder = self.scratch / manifest.digest / wanted[0].sha256
        path = folder / wanted[0].path
        # Two stages may have written the same artifact: equal policies, evaluations of them.
        if not path.exists():
            try:
                self.store.fetch(manifest.model_copy(update={"blobs": wanted[:1]}), folder)
            except BurnishError as error:
                self.notes.append(str(error))
                return None
        return path


if __name__ == "__main__":
    from burnish.stages.alone import stage_main

    stage_main("report")
