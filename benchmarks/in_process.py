"""A whole run in one process: the stages as they are, in the order of the DAG, over a store in a folder.

Without a process a stage, a round of a tiny model takes a second, so many algorithms can be compared side by side.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import dump_config
from burnish.contracts.stages import STAGES
from burnish.stages.entry import run_stage

# Outputs that the next round reads under another name.
_NEXT = {f"updated_{name}": name for name in ("policy", "trainer_state", "critic", "verdict")}


class InProcessRun:
    """Runs `config` stage by stage; BURNISH_STORE and BURNISH_CACHE must be set. Equal stages are remembered.

    `rounds` may exceed what one DAG holds.
    """

    def __init__(self, config: RunConfig, folder: Path, run_id: str, rounds: int) -> None:
        self._run_id, self._folder = run_id, folder
        self._config = folder / "config.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(dump_config(config), "utf-8")
        self._rounds = rounds

    def run(self, on_record: Callable[[StageRecord], None]) -> None:
        """The whole run; `on_record` sees every record as it is made."""
        self.start(on_record)
        self.rounds_of(on_record)
        on_record(self.evaluate("after"))

    def start(self, on_record: Callable[[StageRecord], None]) -> None:
        """validate, sft and the first evaluation."""
        on_record(self._stage("validate"))
        on_record(self._stage("sft"))
        (self._folder / "reference.json").write_bytes((self._folder / "policy.json").read_bytes())
        on_record(self.evaluate("before"))

    def rounds_of(self, on_record: Callable[[StageRecord], None]) -> None:
        """All rounds."""
        for round in range(1, self._rounds + 1):
            for name in ("rollout", "execute", "reward", "logprob", "update"):
                on_record(self._stage(name, round))
            for written, read in _NEXT.items():
                (self._folder / f"{written}.json").replace(self._folder / f"{read}.json")

    def evaluate(self, label: str) -> StageRecord:
        """Held-out figures of the policy as it is now."""
        return self._stage("evaluate", label=label)

    def _stage(self, name: str, round: int | None = None, label: str = "") -> StageRecord:
        def paths(names: dict[str, Any]) -> dict[str, str]:
            return {key: str(self._folder / f"{key}.json") for key in names}

        stage = STAGES[name]
        return run_stage(
            name,
            config_path=str(self._config),
            run_id=self._run_id,
            inputs=paths(stage.reads),
            outputs=paths(stage.writes),
            round=round,
            label=label,
        )
