"""A run in one page of text: `summary.json` for programs and `report.md` for people."""

from dataclasses import asdict
from typing import Any, Literal

from burnish.contracts.artifacts import StageRecord, stage_title
from burnish.contracts.cost import run_cost
from burnish.contracts.evaluation import Score
from burnish.report.comparison import Row, compare, verdict
from burnish.report.diagnosis import diagnose
from burnish.report.run import RunView
from burnish.report.timing import run_time
from burnish.report.verdicts import stop_text

SUMMARY_VERSION = 1
Status = Literal["finished", "stopped", "failed", "unfinished"]


def failures(view: RunView) -> list[StageRecord]:
    """Stages that left an error, in the order in which they started."""
    return [record for record in view.records if record.error]


def missing_stages(view: RunView) -> list[str]:
    """Rounds and evaluations that left no record: killed, or not reached yet."""
    there = {record.title for record in view.records}
    first, last = view.config.start.round + 1, view.config.last_round
    rounds = [round for round in range(first, last + 1) if stage_title("update", round) not in there]
    missing = []
    if rounds:
        # Rounds depend on each other, so those that are missing are the last ones.
        missing.append(f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}")
    labels = ("before", "after") if view.config.rounds else ("before",)
    return missing + [title for label in labels if (title := stage_title("evaluate", label=label)) not in there]


def run_status(view: RunView) -> Status:
    if failures(view):
        return "failed"
    if missing_stages(view):
        return "unfinished"
    return "stopped" if view.verdicts.stop else "finished"


def rounds_done(view: RunView) -> int:
    """Rounds that were trained to their end."""
    return sum(record.stage == "update" and not record.error and not record.skipped for record in view.records)


def headline(rows: list[Row]) -> str:
    """One sentence on the smallest k over all tasks."""
    overall = [row for row in rows if row.task is None]
    if not overall:
        return "There is no evaluation to compare."
    return verdict(overall[0])


def summarise(view: RunView) -> dict[str, Any]:
    """The JSON of `summary.json`; None wherever a figure is not known."""
    rows = compare(view.evaluations)
    time = run_time(view.records)
    rounds = [found for found in view.sample_sets if found.round is not None]
    rewards = [found.stats.reward.mean for found in rounds if found.stats.reward]
    return {
        "summary_version": SUMMARY_VERSION,
        "run_id": view.run_id,
        "name": view.config.name,
        "status": run_status(view),
        "errors": [{"stage": record.title, "error": record.error} for record in failures(view)],
        "missing": missing_stages(view),
        "model": view.config.model.path,
        "tasks": [task.title for task in view.config.tasks],
        "preset": view.config.update.preset,
        "seed": view.config.seed,
        "rounds_planned": view.config.rounds,
        "rounds_done": rounds_done(view),
        "rounds_skipped": view.verdicts.skipped,
        "verdicts": [asdict(found) for found in view.verdicts.rounds],
        "diagnosis": [{"rule": found.rule, **asdict(found.symptom)} for found in diagnose(view)],
        "headline": headline(rows),
        "comparison": [_row(row) for row in rows],
        "reward_first": rewards[0] if rewards else None,
        "reward_last": rewards[-1] if rewards else None,
        "wall_s": time.wall if time else None,
        "compute_s": time.compute if time else None,
        "overhead_share": time.overhead if time else None,
        "cost": run_cost(view.records, view.config.cost),
        "currency": view.config.cost.currency,
        "budget": view.config.cost.budget,
        "peak_memory_mb": max((record.peak_memory_mb or 0.0 for record in view.records), default=None) or None,
        "stages": [
            {"stage": record.title, "cached": record.cached, "error": record.error, "timings": record.timings}
            for record in view.records
        ],
    }


def markdown(view: RunView) -> str:
    """`report.md`."""
    summary = summarise(view)
    lines = [f"# {summary['name']}: {summary['status']}", ""]
    lines += [f"**{found['stage']} failed:** {_cell(found['error'])}\n" for found in summary["errors"]]
    if summary["missing"]:
        lines += [f"Not finished: {', '.join(summary['missing'])}.", ""]
    if view.verdicts.stop:
        lines += [f"**This run was {stop_text(view.verdicts)}.**", ""]
        lines += [f"- {_cell(reason)}" for reason in view.verdicts.stop.reasons] + [""]
    lines += [summary["headline"], ""]
    if summary["comparison"]:
        lines += ["| task | measure | before | after | change |", "|---|---|---|---|---|"]
        lines += [
            f"| {_cell(row.task or 'all')} | pass@{row.k} | {score_text(row.before)} | {score_text(row.after)} "
            f"| {change_text(row)} |"
            for row in compare(view.evaluations)
        ]
        lines.append("")
    facts = {
        "model": summary["model"],
        "tasks": ", ".join(summary["tasks"]),
        "preset": summary["preset"],
        "seed": summary["seed"],
        "rounds": f"{summary['rounds_done']} of {summary['rounds_planned']}",
        "wall time": None if summary["wall_s"] is None else duration(summary["wall_s"]),
        "cost": cost_text(view),
        "overhead": None if summary["overhead_share"] is None else f"{summary['overhead_share']:.0%} of wall time",
    }
    lines += [f"- {name}: {_cell(str(value))}" for name, value in facts.items() if value is not None]
    if summary["diagnosis"]:
        lines += ["", "## Likely causes", ""]
        lines += [
            f"- **{each['rule']}**: {_cell(each['cause'])} {_cell(each['evidence'])}. Change: {_cell(each['change'])}."
            for each in summary["diagnosis"]
        ]
    return "\n".join(lines) + "\n"


def cost_text(view: RunView) -> str | None:
    """`3.20 of 10.00 USD`; None when no price is given, and the reason when there is one but no cost."""
    cost = view.config.cost
    if not cost.priced:
        return None
    spent = run_cost(view.records, cost)
    return "not known: a stage's resources or their price are missing" if spent is None else cost.text(spent)


def score_text(score: Score | None) -> str:
    """`42.0% [38.1, 46.2]`."""
    if score is None or score.value is None:
        return "not measured"
    if score.low is None or score.high is None:
        return f"{score.value:.1%}"
    return f"{score.value:.1%} [{score.low * 100:.1f}, {score.high * 100:.1f}]"


def change_text(row: Row) -> str:
    if row.change is None:
        return ""
    noise = "" if row.change.beyond_noise else ", within noise"
    return f"{row.change.mean * 100:+.1f} [{row.change.low * 100:+.1f}, {row.change.high * 100:+.1f}]{noise}"


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _row(row: Row) -> dict[str, Any]:
    def score(found: Score | None) -> dict[str, Any] | None:
        return None if found is None else {"value": found.value, "low": found.low, "high": found.high}

    change = row.change
    return {
        "task": row.task,
        "k": row.k,
        "before": score(row.before),
        "after": score(row.after),
        "change": None
        if change is None
        else {"mean": change.mean, "low": change.low, "high": change.high, "beyond_noise": change.beyond_noise},
    }


def _cell(text: str | None) -> str:
    """Text that cannot break out of a Markdown table or become HTML."""
    return (text or "").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
