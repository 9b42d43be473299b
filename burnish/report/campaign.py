"""The page of a campaign: curves across all of its chunks, with their borders, and a line on each.

Made from the campaign's state alone; what a round looked like in detail is in the report of its chunk.
"""

from collections.abc import Mapping
from html import escape
from importlib.resources import files

import burnish
from burnish.contracts.campaign import Campaign, Chunk
from burnish.report.charts import draw, format_value
from burnish.report.curves import Chart, Line

_CHARTS = (
    ("reward", "Reward", "mean over the samples of a round"),
    ("kl", "KL to the reference", "nats a token"),
    ("entropy", "Entropy", "nats a token"),
    ("response_length", "Response length", "mean tokens"),
)

# The page has no script, and nothing from elsewhere.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} - Burnish campaign</title>
<style>{css}</style>
</head>
<body>
<header>
<p class="brand">Burnish campaign</p>
<h1>{name} <span class="status {status}">{status}</span></h1>
<dl class="facts">{facts}</dl>
</header>
<main>
{problem}
<section id="curves"><h2>Curves</h2><div class="charts">{charts}</div>
<p class="hint">Upright lines: where a chunk ends.</p></section>
<section id="chunks"><h2>Chunks</h2><div class="scroll"><table class="verdicts"><thead><tr>
<th>chunk</th><th>verdict</th><th>rounds</th><th>reward</th><th>held-out</th><th>minutes</th><th>run</th></tr></thead>
<tbody>{rows}</tbody></table></div></section>
</main>
<footer>campaign {campaign_id} · burnish {version}</footer>
</body>
</html>
"""


def render_campaign(campaign: Campaign, name: str, rounds: int, links: Mapping[int, str]) -> str:
    """The HTML page. rounds: planned in total; links: address of each chunk's run or report, by number."""
    facts = {
        "rounds": f"{campaign.rounds_done} of {rounds}",
        "chunks": str(len(campaign.chunks)),
        "rollbacks": str(campaign.rollbacks),
        "hours": f"{campaign.hours:.2f}",
    }
    problem = f'<div class="problem"><b>Stopped</b><p>{escape(campaign.reason)}</p></div>' if campaign.reason else ""
    return _PAGE.format(
        name=escape(name),
        css=files("burnish.report").joinpath("page.css").read_text("utf-8"),
        status=campaign.status,
        facts="".join(f"<div><dt>{key}</dt><dd>{escape(value)}</dd></div>" for key, value in facts.items()),
        problem=problem,
        charts="".join(draw(chart) for chart in campaign_charts(campaign)) or "<p>No round is done yet.</p>",
        rows="".join(_row(chunk, links.get(chunk.number, "")) for chunk in campaign.chunks),
        campaign_id=escape(campaign.campaign_id),
        version=escape(burnish.__version__),
    )


def campaign_charts(campaign: Campaign) -> list[Chart]:
    """Reward, KL, entropy, length by round, and the held-out pass@k by the round before each evaluation."""
    outcomes = [chunk.outcome for chunk in campaign.chunks if chunk.outcome]
    rounds = [found for outcome in outcomes for found in outcome.rounds]
    borders = [outcome.last_round + 0.5 for outcome in outcomes[:-1]]
    charts = []
    for name, title, note in _CHARTS:
        points = [(float(found.round), getattr(found, name)) for found in rounds]
        if any(value is not None for _, value in points):
            charts.append(Chart(title, [Line(name, points)], note=note, borders=borders))
    evaluated = [(0.0, outcomes[0].before)] if outcomes else []
    evaluated += [(float(outcome.last_round), outcome.after) for outcome in outcomes]
    names = list(dict.fromkeys(name for _, scores in evaluated for name in scores))
    if names:
        lines = [Line(name, [(x, scores[name]) for x, scores in evaluated if name in scores]) for name in names]
        charts.append(Chart("Held-out", lines, note="before the first round and after chunks", unit="share"))
    return charts


def _row(chunk: Chunk, link: str) -> str:
    outcome = chunk.outcome
    first, last = chunk.start.round + 1, chunk.last_round
    run = f'<a href="{escape(link)}">{escape(chunk.run_id)}</a>' if link else escape(chunk.run_id)
    cells = [str(chunk.number), _verdict(chunk), f"{first} to {last}"]
    if outcome is None:
        return f"<tr><td>{'</td><td>'.join([*cells, '', '', '', run])}</td></tr>"
    rewards = [found.reward for found in outcome.rounds if found.reward is not None]
    held_out = ", ".join(f"{name} {value:.1%}" for name, value in outcome.after.items())
    shown = " → ".join(format_value(value) for value in dict.fromkeys((*rewards[:1], *rewards[-1:])))
    status = "stop" if outcome.collapsed else "rolled_back" if chunk.rolled_back else "ok"
    cells += [shown, escape(held_out), f"{outcome.seconds / 60:.1f}", run]
    return f'<tr class="{status}"><td>{"</td><td>".join(cells)}</td></tr>'


def _verdict(chunk: Chunk) -> str:
    if chunk.error:
        return f"failed: {escape(chunk.error)}"
    if chunk.outcome is None:
        return "running"
    if chunk.outcome.collapsed or chunk.short_of_budget:
        return escape(f"stopped: {'; '.join(chunk.outcome.reasons)}")
    return "ok, after a rollback" if chunk.rolled_back else "ok"
