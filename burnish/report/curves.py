"""Which curves a run has: the ones people ask for first, found by their metric names, then every other metric.

A value that is missing stays missing: it becomes a gap in the line, never a 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from burnish.contracts.artifacts import StageRecord
from burnish.report.run import Estimate, RunView, SampleSet

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    label: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) around the line."""


@dataclass(frozen=True)
class Chart:
    """Lines over the same x."""

    title: str
    lines: Sequence[Line]
    x_title: str = "round"
    note: str = ""
    unit: str = ""
    """`share` is shown in per cent."""
    keys: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """The (stage, metric) pairs it shows."""
    borders: Sequence[float] = ()
    """x of upright lines."""


@dataclass(frozen=True)
class _Wanted:
    """A chart people look for: (stage, metric) pairs, the first that has values, or all of them `together`."""

    title: str
    sources: tuple[tuple[str, str], ...]
    note: str = ""
    unit: str = ""
    together: bool = False


_WANTED = (
    _Wanted("KL to the reference", (("update", "kl"), ("logprob", "kl_ref")), "nats a token"),
    _Wanted("Entropy", (("logprob", "entropy"),), "nats a token"),
    _Wanted("Clipped tokens", (("update", "clip_fraction"),), "ratio outside the clip range", "share"),
    _Wanted("Effective sample size", (("logprob", "ess"),), "100 %: sampler and trainer agree", "share"),
    _Wanted("Sampler against trainer", (("logprob", "mismatch_k3"),), "KL in nats a token"),
    _Wanted("Chi-square of the mismatch", (("logprob", "mismatch_chi2"),), "variance that importance weights add"),
    _Wanted("Gradient of failures", (("update", "negative_gradient_share"),), "of the gradient norm", "share"),
    _Wanted("Loss", (("update", "loss"),)),
    _Wanted("Gradient norm", (("update", "grad_norm"),), "before clipping"),
    _Wanted("Critic: explained variance", (("update", "explained_variance"),), "1: it knows the returns; 0: nothing"),
    _Wanted("Critic: value loss", (("update", "value_loss"),)),
    _Wanted("Learning rate", (("update", "lr"),)),
    _Wanted("Cold start: loss", (("sft", "loss"), ("sft", "val_loss")), together=True),
)


def charts(view: RunView) -> tuple[list[Chart], list[Chart]]:
    """The charts to show at once, and those of all remaining metrics that have more than one value."""
    rounds = sorted(
        (found for found in view.sample_sets if found.round is not None), key=lambda found: found.round or 0
    )
    lines = _metric_lines(view.records)
    first = [*_sample_charts(rounds), *(chart for wanted in _WANTED if (chart := _find(wanted, lines)))]
    shown = {key for chart in first for key in chart.keys}
    rest = [
        Chart(f"{stage}: {key}", [Line(key, points)], x_title, keys=frozenset({(stage, key)}))
        for (stage, key), (x_title, points) in sorted(lines.items())
        if (stage, key) not in shown and len(points) > 1
    ]
    return first, rest


def _sample_charts(rounds: Sequence[SampleSet]) -> Iterable[Chart]:
    if not rounds:
        return
    rewards = {found.round: found.stats.reward for found in rounds}
    if any(rewards.values()):
        note = "mean over samples; band: 95 % interval over prompts"
        yield Chart("Reward", [_estimate_line("reward", rewards)], note=note)
    tasks = sorted({task for found in rounds for task in found.stats.task_reward})
    if len(tasks) > 1:
        by_task = [
            Line(task, [(float(found.round or 0), found.stats.task_reward.get(task)) for found in rounds])
            for task in tasks
        ]
        yield Chart("Reward by task", by_task, note="mean over samples")
    lengths = {found.round: found.stats.response_tokens for found in rounds}
    yield Chart("Response length", [_estimate_line("tokens", lengths)], note="mean tokens; band: 10 to 90 % of samples")
    truncated: list[Point] = [(float(found.round or 0), found.stats.truncated) for found in rounds]
    yield Chart("Truncated responses", [Line("truncated", truncated)], note="hit the length limit", unit="share")


def _estimate_line(label: str, estimates: Mapping[int | None, Estimate | None]) -> Line:
    points: list[Point] = [(float(x or 0), found.mean if found else None) for x, found in estimates.items()]
    band = [(float(x or 0), found.low, found.high) for x, found in estimates.items() if found]
    return Line(label, points, band)


def _metric_lines(records: Sequence[StageRecord]) -> dict[tuple[str, str], tuple[str, list[Point]]]:
    """x title and points of every metric, by (stage, key): series rows where a stage has them, else one a round.

    What steps measure no more than once a round is drawn by round, where it makes a line.
    """
    lines: dict[tuple[str, str], tuple[str, list[Point]]] = {}
    records = [record for record in records if not (record.skipped or record.shard)]
    for record in sorted(records, key=lambda record: (record.round or 0, record.started_at)):
        if record.label:
            continue
        # A row that lacks a key could not measure it.
        for key in sorted({key for row in record.series for key in row} - {"step"}):
            points = lines.setdefault((record.stage, key), ("step", []))[1]
            points += [(row.get("step") or 0.0, row.get(key)) for row in record.series]
    rounds = {record.round for record in records if record.round is not None}
    for (stage, key), (_, points) in list(lines.items()):
        by_round = any(
            key in record.metrics for record in records if record.stage == stage and record.round is not None
        )
        if by_round and len(points) > len(rounds) >= sum(value is not None for _, value in points):
            del lines[stage, key]
    for record in sorted(records, key=lambda record: record.round or 0):
        if record.round is None or record.label:
            continue
        for key, value in record.metrics.items():
            x_title, points = lines.setdefault((record.stage, key), ("round", []))
            if x_title == "round":
                points.append((float(record.round), value))
    return {key: line for key, line in lines.items() if any(value is not None for _, value in line[1])}


def _find(wanted: _Wanted, lines: Mapping[tuple[str, str], tuple[str, list[Point]]]) -> Chart | None:
    found = [source for source in wanted.sources if source in lines]
    if not wanted.together:
        found = found[:1]
    if not found:
        return None
    drawn = [Line(source[1], lines[source][1]) for source in found]
    return Chart(wanted.title, drawn, lines[found[0]][0], wanted.note, wanted.unit, keys=frozenset(found))
