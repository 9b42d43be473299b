"""What the collapse detector said after each round, by the verdicts' manifests, and whether the budget ended a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.contracts.verdict import Status

STATUS_WORDS: dict[Status, str] = {"ok": "ok", "warn": "warning", "rolled_back": "rolled back", "stop": "stopped"}


@dataclass(frozen=True)
class RoundVerdict:
    """One round that was trained; rounds after a stop have none."""

    round: int
    status: Status
    reasons: list[str]


@dataclass(frozen=True)
class Verdicts:
    """All rounds' verdicts, in order, and the rounds that a stop left out."""

    rounds: list[RoundVerdict]
    skipped: list[int]
    budget: RoundVerdict | None = None
    """Said before the round that the budget did not bear; nothing was wrong with the last one that was trained."""

    @property
    def stop(self) -> RoundVerdict | None:
        """What ended the run early, if anything did."""
        return next((found for found in self.rounds if found.status == "stop"), self.budget)

    @property
    def rolled_back(self) -> list[int]:
        return [found.round for found in self.rounds if found.status == "rolled_back"]


def read_verdicts(records: Sequence[StageRecord], manifests: Mapping[str, Manifest]) -> Verdicts:
    """The verdicts of a run's updates; `manifests` by digest, those that are missing are left out."""
    updates = sorted((record for record in records if record.stage == "update"), key=lambda record: record.round or 0)
    rounds = []
    for record in updates:
        manifest = manifests.get(record.outputs.get("updated_verdict", ""))
        if manifest is not None and not record.skipped and manifest.metadata.get("status") in STATUS_WORDS:
            metadata = manifest.metadata
            rounds.append(RoundVerdict(record.round or 0, metadata["status"], list(metadata.get("reasons", ()))))
    over = next((record.stop_reason for record in records if record.stop_reason), None)
    last = rounds[-1].round if rounds else 0
    skipped = [record.round or 0 for record in updates if record.skipped]
    return Verdicts(rounds, skipped, RoundVerdict(last, "stop", [over]) if over else None)


def stop_text(verdicts: Verdicts) -> str:
    """One sentence on why a run ended early; empty when it did not."""
    if verdicts.stop is None:
        return ""
    skipped = verdicts.skipped
    left_out = ""
    if skipped:
        left_out = f", {rounds_text(skipped)} left out"
    used = "the policy it had by then" if verdicts.stop is verdicts.budget else "the last good policy"
    return f"stopped after round {verdicts.stop.round}{left_out}; what follows used {used}"


def rounds_text(rounds: Sequence[int]) -> str:
    """`round 3`, `rounds 3 to 5`, `rounds 1, 4`."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if list(rounds) == list(range(rounds[0], rounds[-1] + 1)):
        return f"rounds {rounds[0]} to {rounds[-1]}"
    return f"rounds {', '.join(map(str, rounds))}"
