"""Runs a stage's `run` on a folder store, for tests of the stages without torch."""

import importlib
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import Lineage
from burnish.contracts.loading import parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Execution, Prompt, Record, Rollout
from burnish.contracts.stages import STAGES
from burnish.stages.entry import StageContext, StageResult
from burnish.store import open_store

RECORDS: dict[str, type[Record]] = {"rollouts": Rollout, "prompts": Prompt, "executions": Execution}


def run_light(
    name: str, tmp_path: Path, config: dict[str, Any], inputs: dict[str, list] | None = None
) -> tuple[StageResult, StageContext]:
    """The result and the context, whose output folders hold what was written."""
    store = open_store(str(tmp_path / "store"))
    stage = STAGES[name]
    manifests = {}
    for kind, rows in (inputs or {}).items():
        folder = tmp_path / "given" / kind
        folder.mkdir(parents=True)
        write_records(folder / f"{kind}.parquet", rows, RECORDS[kind])
        manifests[kind] = store.put_artifact(
            stage.reads[kind], folder, lineage=Lineage(stage="test"), counts={}, metadata={}
        )
    view = parse_config(config).view(stage.sections)
    context = StageContext(stage, view, "run", 1, "", store, manifests, tmp_path / "work")
    return importlib.import_module(f"burnish.stages.{name}").run(context), context
