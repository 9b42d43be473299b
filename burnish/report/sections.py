"""The parts of the HTML report as HTML text; every value from a run goes through `escape`."""

from collections.abc import Sequence
from html import escape

from burnish.contracts.artifacts import stage_title
from burnish.contracts.loading import dump_config
from burnish.report.charts import bar, draw
from burnish.report.comparison import Row, compare
from burnish.report.curves import Chart
from burnish.report.run import RunView
from burnish.report.summary import (
    change_text,
    cost_text,
    duration,
    failures,
    headline,
    missing_stages,
    rounds_done,
    score_text,
)
from burnish.report.timing import PHASES, StageTime, run_time
from burnish.report.verdicts import stop_text


def facts(view: RunView) -> list[tuple[str, str]]:
    """Name and value of the header's facts, text."""
    config = view.config
    time = run_time(view.records)
    found = [
        ("model", config.model.path),
        ("tasks", ", ".join(task.title for task in config.tasks)),
        ("preset", config.update.preset),
        ("rounds", f"{rounds_done(view)} of {config.rounds}"),
        ("group size", f"{config.rollout.prompts_per_round} prompts × {config.rollout.samples_per_prompt}"),
        ("seed", str(config.seed)),
    ]
    if time:
        found.append(("wall time", duration(time.wall)))
    cost = cost_text(view)
    if cost:
        found.append(("cost", cost))
    return found


def problems_section(view: RunView) -> str:
    """What went wrong, at the top; empty when nothing did."""
    parts = [
        f'<div class="problem"><b>{escape(record.title)} failed</b><pre>{escape(record.error or "")}</pre></div>'
        for record in failures(view)
    ]
    stop = view.verdicts.stop
    if stop:
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in stop.reasons)
        said = escape(stop_text(view.verdicts))
        parts.append(f'<div class="problem"><b>This run was {said}</b><ul class="plain">{reasons}</ul></div>')
    missing = missing_stages(view)
    if missing:
        listed = escape(", ".join(missing))
        why = "" if parts else " Still running, or killed without a word (out of memory, say)."
        parts.append(f'<div class="problem mild"><b>Not finished</b><p>{listed}.{why}</p></div>')
    parts += [f'<div class="problem mild"><p>{escape(note)}</p></div>' for note in view.notes]
    return "".join(parts)


def result_section(view: RunView) -> str:
    rows = compare(view.evaluations)
    if not rows:
        return ""
    body = "".join(_result_row(row) for row in rows)
    details = []
    for label, evaluation in sorted(view.evaluations.items(), reverse=True):
        parts = [f"{len(evaluation.outcomes)} prompts × {evaluation.samples}", f"T = {evaluation.temperature:g}"]
        if evaluation.response_tokens is not None:
            parts.append(f"{evaluation.response_tokens:.1f} tokens a response")
        if evaluation.truncated is not None:
            parts.append(f"{evaluation.truncated:.1%} truncated")
        if evaluation.unscored:
            parts.append(f"{evaluation.unscored} without a verdict")
        details.append(f"<li><b>{escape(label)}</b>: {', '.join(parts)}</li>")
    return (
        f'<p class="headline">{escape(headline(rows))}</p><div class="scroll"><table class="result"><thead><tr>'
        "<th>task</th><th>measure</th><th>before</th><th>after</th><th>change, points</th><th>0 to 100 %</th>"
        f"</tr></thead><tbody>{body}</tbody></table></div>"
        '<p class="legend"><span class="before">before</span><span class="after">after</span>'
        "<small>Brackets and whiskers: 95 % bootstrap intervals over prompts; change: paired.</small></p>"
        f'<ul class="plain">{"".join(details)}</ul>'
    )


def _result_row(row: Row) -> str:
    direction = ""
    if row.change and row.change.beyond_noise:
        direction = "better" if row.change.mean > 0 else "worse"
    return (
        f"<tr><td>{escape(row.task or 'all tasks')}</td><td>pass@{row.k}</td><td>{score_text(row.before)}</td>"
        f'<td>{score_text(row.after)}</td><td class="{direction}">{change_text(row)}</td><td>{_whiskers(row)}</td></tr>'
    )


def _whiskers(row: Row) -> str:
    parts = []
    for name, y, score in (("before", 6, row.before), ("after", 16, row.after)):
        if score is None or score.value is None:
            continue
        low, high = score.low or 0.0, score.high if score.high is not None else score.value
        parts.append(f'<line class="{name}" x1="{low * 200:.1f}" x2="{high * 200:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{name}" cx="{score.value * 200:.1f}" cy="{y}" r="4"/>')
    frame = '<line class="grid" x1="0" x2="200" y1="21.5" y2="21.5"/>' + "".join(
        f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="22"/>' for x in (0, 50, 100, 150, 200)
    )
    return f'<svg class="whiskers" viewBox="-5 0 210 22" aria-hidden="true">{frame}{"".join(parts)}</svg>'


def curves_section(first: Sequence[Chart], rest: Sequence[Chart]) -> str:
    drawn = "".join(draw(chart) for chart in first)
    if not drawn and not rest:
        return ""
    more = ""
    if rest:
        more = (
            f"<details><summary>All other metrics ({len(rest)})</summary>"
            f'<div class="charts">{"".join(draw(chart) for chart in rest)}</div></details>'
        )
    return f'<div class="charts">{drawn}</div>{more}'


def rollouts_section(view: RunView) -> str:
    if not any(found.shown for found in view.sample_sets):
        return ""
    return (
        '<p class="hint">The best and the worst of each group are kept first. Tokens are coloured by how much more or '
        "less likely the trainer finds them than the sampler did.</p>"
        '<noscript><p>This part needs scripts.</p></noscript><div id="browser"></div>'
    )


def time_section(view: RunView) -> str:
    time = run_time(view.records)
    if time is None:
        return ""
    remembered = [record.title for record in view.records if record.cached]
    note = (
        f"<p class=hint>Remembered from an earlier attempt: {escape(', '.join(remembered))}.</p>" if remembered else ""
    )
    overhead = f"<b>{time.overhead:.0%}</b> of the wall time went into something else: "
    keys = "".join(f'<span class="{phase}">{phase}</span>' for phase in (*PHASES, "rest"))
    kinds: dict[str, list[StageTime]] = {}
    for stage in time.stages:
        kinds.setdefault(stage.record.stage, []).append(stage)
    longest = max(sum(stage.total for stage in stages) for stages in kinds.values())
    by_kind = [_time_row(kind, stages, longest, 0.0) for kind, stages in kinds.items()]
    by_use = [_time_row(stage.record.title, [stage], time.wall, stage.offset) for stage in time.stages]
    return (
        f"<p>{duration(time.wall)} from first to last stage, {duration(time.compute)} of them computing. {overhead}"
        f"{duration(max(0.0, time.work - time.compute))} starting, importing, loading and storing inside stages, "
        f"{duration(time.wall - time.busy)} between them.</p>{note}"
        f'<p class="legend bars">{keys}</p>{_time_table("all uses together", by_kind)}'
        f"<details><summary>Timeline of {len(by_use)} stages</summary>{_time_table('when', by_use)}</details>"
    )


def _time_table(scale: str, rows: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table class=times><thead><tr><th>stage</th><th>{scale}</th><th>time</th>'
        f"<th>overhead</th><th>peak MB</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _time_row(title: str, stages: Sequence[StageTime], scale: float, offset: float) -> str:
    total = sum(stage.total for stage in stages)
    segments = [(phase, sum(stage.phases[phase] for stage in stages)) for phase in PHASES]
    segments.append(("rest", max(0.0, total - sum(amount for _, amount in segments))))
    tip = "; ".join(f"{name} {amount:.2f} s" for name, amount in segments if amount >= 0.005)
    overhead = 1.0 - dict(segments)["compute"] / total if total else 0.0
    memory = [stage.record.peak_memory_mb for stage in stages if stage.record.peak_memory_mb is not None]
    failed = " class=failed" if any(stage.record.error for stage in stages) else ""
    uses = f" × {len(stages)}" if len(stages) > 1 else ""
    return (
        f'<tr{failed}><td>{escape(title)}{uses}</td><td title="{tip}">{bar(segments, scale, offset)}</td>'
        f"<td>{duration(total)}</td><td>{overhead:.0%}</td><td>{f'{max(memory):,.0f}' if memory else ''}</td></tr>"
    )


def lineage_section(view: RunView) -> str:
    rows = []
    makers: dict[str, str] = {}
    for record in view.records:
        for digest in record.outputs.values():
            makers.setdefault(digest, record.title)
    # The critic of a run without one, and what stages after a stop pass on.
    empty = {digest for digest, manifest in view.manifests.items() if not manifest.blobs}
    for record in view.records:
        for name, digest in record.outputs.items():
            manifest = view.manifests.get(digest)
            if digest in empty or record.skipped:
                continue
            if manifest is None:
                rows.append(
                    f"<tr><td>{escape(name)}</td><td><code>{digest[:12]}</code></td><td>not in the store</td>"
                    f"<td>{escape(record.title)}</td><td></td><td></td></tr>"
                )
                continue
            inputs = ", ".join(
                f"{escape(key)} <code title={source}>{source[:12]}</code>"
                + (f" ({escape(makers[source])})" if source in makers else "")
                for key, source in manifest.lineage.inputs.items()
                if source not in empty
            )
            counts = ", ".join(f"{amount:,} {escape(key)}" for key, amount in manifest.counts.items())
            made = stage_title(manifest.lineage.stage, manifest.lineage.round, record.label)
            rows.append(
                f"<tr><td>{escape(name)}</td><td><code title={digest}>{digest[:12]}</code></td>"
                f"<td>{size_text(manifest.size)}</td><td>{escape(made)}</td><td>{inputs}</td><td>{counts}</td></tr>"
            )
    if not rows:
        return ""
    return (
        f"<details><summary>{len(rows)} artifacts, each with the inputs it was made from</summary>"
        '<div class="scroll"><table><thead><tr><th>artifact</th><th>digest</th><th>size</th><th>made by</th>'
        f"<th>from</th><th>holds</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def settings_section(view: RunView) -> str:
    return f"<details><summary>Resolved configuration</summary><pre>{escape(dump_config(view.config))}</pre></details>"


def size_text(size: int) -> str:
    """`812 B`, `3.4 MB`."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
