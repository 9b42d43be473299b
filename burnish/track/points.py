"""From a stage's record to the points of MLflow's curves, and from many points to requests that MLflow takes.

Names and steps follow the table in docs/mlflow.md, so that two runs lie over each other in MLflow's compare view.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burnish.contracts.artifacts import StageRecord

# MLflow takes 1000 entities a request, of which at most 100 are tags.
METRICS_A_BATCH = 900
MARKS_A_BATCH = 100

Point = tuple[str, float, int, int]
"""Name, value, Unix time in ms, step."""


@dataclass(frozen=True)
class Batch:
    """One request."""

    metrics: list[Point]
    records: list[StageRecord]
    """Those of which nothing is left to send after this batch."""


def batches(records: Sequence[StageRecord], rounds: int, start_ms: int, first: int = 0) -> Iterator[Batch]:
    """The points of `records` in requests; `start_ms` is the run's start, where the steps of the load begin.

    first, rounds: as for `metric_points`.
    """
    batch = Batch([], [])
    for record in records:
        timestamp = int(record.finished_at * 1000)
        points = [(name, value, timestamp, step) for name, value, step in metric_points(record, rounds, first)]
        points += load_points(record, start_ms)
        if len(batch.metrics) + len(points) > METRICS_A_BATCH or len(batch.records) == MARKS_A_BATCH:
            yield batch
            batch = Batch([], [])
        for start in range(0, len(points) - METRICS_A_BATCH, METRICS_A_BATCH):
            yield Batch(points[start : start + METRICS_A_BATCH], [])
        batch.metrics.extend(points[(len(points) - 1) // METRICS_A_BATCH * METRICS_A_BATCH :] if points else [])
        batch.records.append(record)
    if batch.records:
        yield batch


def metric_points(record: StageRecord, rounds: int, first: int = 0) -> list[tuple[str, float, int]]:
    """(name, value, step) of everything a record measured; missing values are left out.

    Metrics of a round have the round as step, series rows their own `step`; `after` is the run's last round `rounds`,
    everything else step `first`, the rounds before the run. Names without a prefix get the stage's. Of a shard only
    time and memory: what it measured is in the record of the whole. Of `validate` too: what it counts are datasets.
    """
    step = record.round if record.round is not None else (rounds if record.label == "after" else first)
    measured = {} if record.shard or record.stage == "validate" else record.metrics
    points = [(metric_name(record, key), value, step) for key, value in measured.items()]
    points += [(f"time/{_source(record)}", record.timings.get("total"), step)]
    points += [(f"memory_mb/{_source(record)}", record.peak_memory_mb, step)]
    for index, row in enumerate(record.series):
        row_step = row.get("step")
        points += [
            (legal_name(f"{record.stage}/{key}"), value, index if row_step is None else int(row_step))
            for key, value in row.items()
            if key != "step"
        ]
    return [(name, value, at) for name, value, at in points if value is not None and math.isfinite(value)]


def load_points(record: StageRecord, start_ms: int) -> list[Point]:
    """`system/<stage>/...` with seconds since the run's start as step; MLflow has a tab for names that begin so."""
    points = []
    for row in record.load:
        moment = int(row["time"] * 1000)
        step = (moment - start_ms) // 1000
        points += [
            (f"system/{_source(record)}/{legal_name(key)}", value, moment, step)
            for key, value in row.items()
            if key != "time"
        ]
    return points


def _source(record: StageRecord) -> str:
    """`rollout`, or `rollout/shard_2` for one of several pods: curves of different pods do not mix."""
    return f"{record.stage}/shard_{record.shard.partition('/')[0]}" if record.shard else record.stage


def metric_name(record: StageRecord, key: str) -> str:
    """`eval/before/pass_at_1` for evaluations, `<stage>/<key>` otherwise, in characters that MLflow allows."""
    if record.stage == "evaluate":
        return legal_name("/".join(part for part in ("eval", record.label, key) if part))
    # A figure of the whole stage must not share a name with a per-step curve: their steps mean different things.
    if any(key in row for row in record.series):
        return legal_name(f"{record.stage}/{'stage' if record.round is None else 'round'}/{key}")
    return legal_name(key if key.startswith(f"{record.stage}/") else f"{record.stage}/{key}")


def legal_name(name: str) -> str:
    """MLflow allows letters, digits and _-. :/ in names."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))[:250]
