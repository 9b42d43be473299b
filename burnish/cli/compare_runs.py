"""Two runs side by side in a small table, read where their figures are: the object store, or MLflow.

Both know the same figures under the same names, because what MLflow has was sent from the store's records.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from burnish.contracts.errors import BurnishError

Curve = Sequence[tuple[int, float]]
"""(step, value), by step."""


class _Row(NamedTuple):
    title: str
    metric: str
    """MLflow's name of it."""
    figure: Callable[[list[float]], float]
    """Of the curve's values, by step."""


def _first(values: list[float]) -> float:
    return values[0]


def _last(values: list[float]) -> float:
    return values[-1]


_ROWS = (
    _Row("pass@1 before", "eval/before/pass_at_1", _last),
    _Row("pass@1 after", "eval/after/pass_at_1", _last),
    _Row("reward, first round", "reward/mean", _first),
    _Row("reward, last round", "reward/mean", _last),
    _Row("reward, best round", "reward/mean", max),
    _Row("KL to reference, last", "logprob/kl_ref", _last),
    _Row("entropy, last", "logprob/entropy", _last),
    _Row("response length, last", "rollout/response_length_mean", _last),
    _Row("clip fraction, last", "update/round/clip_fraction", _last),
    _Row("ESS, last", "logprob/ess", _last),
    _Row("seconds of rollout", "time/rollout", sum),
    _Row("seconds of update", "time/update", sum),
)
METRICS = tuple(dict.fromkeys(row.metric for row in _ROWS))


def print_comparison(first: str, second: str) -> None:
    """The figures of Burnish's runs `first` and `second` and how they differ. Raises BurnishError."""
    one, other = curves_of(first), curves_of(second)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for title in (first, second, "difference"):
        table.add_column(escape(title), justify="right")
    for row in _ROWS:
        values = [_figure(row, curves) for curves in (one, other)]
        if values != [None, None]:
            difference = "-" if None in values else f"{values[1] - values[0]:+.3g}"  # type: ignore[operator]
            table.add_row(row.title, *("-" if value is None else f"{value:.4g}" for value in values), difference)
    Console(highlight=False).print(table)


def curves_of(run_id: str) -> dict[str, Curve]:
    """What run `run_id` measured of METRICS, by MLflow's names. Raises BurnishError where there is no such run."""
    if os.environ.get("BURNISH_STORE"):
        return _from_store(run_id)
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return _from_mlflow(run_id)
    raise BurnishError(
        "--compare reads the object store or MLflow, and neither BURNISH_STORE nor MLFLOW_TRACKING_URI is set; set one"
    )


def _figure(row: _Row, curves: dict[str, Curve]) -> float | None:
    values = [value for _, value in curves.get(row.metric, ())]
    return row.figure(values) if values else None


def _from_store(run_id: str) -> dict[str, Curve]:
    from burnish.store import open_store
    from burnish.track.points import metric_points

    store = open_store()
    records = [record for record in store.run_records(run_id) if not record.skipped and not record.error]
    if not records:
        known = ", ".join(store.run_ids()[-10:]) or "none"
        raise BurnishError(f"--compare: run {run_id!r} left no figures in {store.backend.url}; runs there: {known}")
    rounds = max((record.round or 0 for record in records), default=0)
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        for name, value, step in metric_points(record, rounds):
            if name in METRICS:
                found[name][step] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def _from_mlflow(run_id: str) -> dict[str, Curve]:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from burnish.track.run import RUN_ID_TAG

    quoted = run_id.replace("'", "")
    try:
        client = MlflowClient()
        experiments = [found.experiment_id for found in client.search_experiments()]
        runs = client.search_runs(experiments, f"tags.`{RUN_ID_TAG}` = '{quoted}'", max_results=1)
        if not runs:
            raise BurnishError(f"--compare: MLflow has no run with the tag {RUN_ID_TAG}={run_id}")
        measured = [name for name in METRICS if name in runs[0].data.metrics]
        histories = {name: client.get_metric_history(runs[0].info.run_id, name) for name in measured}
    except MlflowException as error:
        raise BurnishError(f"--compare: MLflow does not answer: {' '.join(str(error).split())[:200]}") from None
    return {name: sorted((point.step, point.value) for point in history) for name, history in histories.items()}
