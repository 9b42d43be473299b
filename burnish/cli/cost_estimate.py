"""What a run would cost: the seconds that an earlier run's stages took, at the price of what this one's pods ask for.

Nothing is guessed: where there is nothing to go by, the answer is that it is unknown, and how to come to know.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from burnish.cli.compile import unpriced
from burnish.cli.home import run_id_of
from burnish.contracts.artifacts import StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.cost import price
from burnish.contracts.errors import StoreError
from burnish.contracts.stages import STAGES
from burnish.store import ArtifactStore, open_store

if TYPE_CHECKING:
    from pipelines.placement import ClusterPlacement


def estimate(config: RunConfig, placement: "ClusterPlacement") -> str:
    """One line: the estimate and where it comes from, or why there is none and what to do about it."""
    if not config.cost.priced:
        return "unknown: nothing has a price; set cost.gpu_hour (by type) and cost.cpu_hour"
    if kinds := unpriced(placement, config):
        return f"unknown: {kinds[0]} has no price; add it to cost.gpu_hour"
    if not os.environ.get("BURNISH_STORE"):
        return "unknown: it is told from an earlier run; set BURNISH_STORE and its AWS_* to the store of your runs"
    try:
        store = open_store()
        run_id = _earlier_run(store, config)
        if run_id is None:
            return f"unknown: no run called {config.name!r} is in this store; run it with rounds=1, then plan again"
        records = store.run_records(run_id)
    except StoreError as error:
        return f"unknown: {error}"
    amount = _estimate(records, config, placement)
    if isinstance(amount, str):
        return f"unknown: {amount}"
    other = "" if run_id == run_id_of(config) else ", which had other settings"
    return f"about {config.cost.text(amount)}, by what {run_id} took{other}"


def _earlier_run(store: ArtifactStore, config: RunConfig) -> str | None:
    """The run of this very configuration, else the latest of its name."""
    newest: dict[str, float] = defaultdict(float)
    for found in store.backend.list("runs/"):
        run_id = found.key.split("/")[1]
        if run_id.rpartition("-")[0] == config.name:
            newest[run_id] = max(newest[run_id], found.modified)
    own = run_id_of(config)
    return own if own in newest else max(newest, key=lambda run_id: newest[run_id], default=None)


def _estimate(records: Sequence[StageRecord], config: RunConfig, placement: "ClusterPlacement") -> float | str:
    """The cost, or one line on what it cannot be told from."""
    amounts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    in_rounds = set()
    for record in records:
        if record.error or record.skipped:
            continue
        # Shards are gathered in a pod like that of reward.
        asked = placement.of("reward" if "shards" in record.metrics else record.stage).resources
        if record.resources != asked:
            return f"{record.run_id} ran {record.stage} with {_text(record.resources)}, this asks for {_text(asked)}"
        # All shards of a round's stage together, and gathering them, are one use of it.
        use = f"{record.round}/{record.label}"
        amounts[record.stage][use] += price(record.seconds, asked, config.cost) or 0.0
        if record.round is not None:
            in_rounds.add(record.stage)
    total = 0.0
    for stage in STAGES:
        uses = config.rounds if stage in in_rounds else 1 + (stage == "evaluate" and config.rounds > 0)
        if stage in amounts:
            total += uses * fmean(amounts[stage].values())
        elif stage != "report":
            return f"the earlier run has no finished {stage} to go by; let it get so far"
    return total


def _text(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "resources that nobody noted"
