"""The report's panel on stability: verdicts by round, likely causes, and the tokens that two engines disagree on."""

import math
from html import escape

from burnish.report.diagnosis import DETECTOR, diagnose
from burnish.report.run import RunView, SampleSet, TokenDispute
from burnish.report.tokens import split_text
from burnish.report.verdicts import STATUS_WORDS, rounds_text

_CONTEXT_TOKENS = 12


def stability_section(view: RunView) -> str:
    """Empty before the first round; every value of the run is escaped here."""
    verdicts, causes = _verdicts(view), _causes(view)
    disputes = "".join(_disputes(found, view) for found in view.sample_sets if found.disputes)
    if disputes:
        disputes = (
            "<details><summary>Tokens on which sampler and trainer disagree most, by round</summary><div>"
            '<p class="hint">Fresh rollouts come from equal weights: what differs then is precision or kernels.</p>'
            f"{disputes}</div></details>"
        )
    return verdicts + causes + disputes


def _verdicts(view: RunView) -> str:
    verdicts = view.verdicts
    if not verdicts.rounds:
        return ""
    well = [found.round for found in verdicts.rounds if found.status == "ok"]
    action = view.config.collapse.action
    if len(well) == len(verdicts.rounds) and action == "off":
        return "<p>The collapse detector was off.</p>"
    if len(well) == len(verdicts.rounds):
        return f"<p>The collapse detector found nothing in {rounds_text(well)}.</p>"
    rows = [
        f'<tr class="{found.status}"><td>round {found.round}</td><td>{STATUS_WORDS[found.status]}</td>'
        f"<td>{'<br>'.join(escape(reason) for reason in found.reasons)}</td></tr>"
        for found in verdicts.rounds
        if found.status != "ok"
    ]
    if verdicts.skipped:
        rows.append(f"<tr><td>{rounds_text(verdicts.skipped)}</td><td>left out</td><td></td></tr>")
    summary = [f"Nothing found in {rounds_text(well)}." if well else ""]
    if verdicts.rolled_back:
        gentler = view.config.collapse
        summary.append(
            f"{rounds_text(verdicts.rolled_back).capitalize()} undone; each time the learning rate was multiplied by "
            f"{gentler.lr_factor:g} and the clip ranges by {gentler.clip_factor:g}."
        )
    return (
        f"<p>{escape(' '.join(part for part in summary if part))}</p>"
        '<div class="scroll"><table class="verdicts"><thead><tr><th>round</th><th>verdict</th>'
        f"<th>why, and what to change</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _causes(view: RunView) -> str:
    # What the detector said stands right above.
    found = [each for each in diagnose(view) if each.rule != DETECTOR]
    if not found:
        return "<p>No rule of the diagnosis applies.</p>" if view.verdicts.rounds and not view.verdicts.stop else ""
    cards = (
        f'<div class="cause"><b>{escape(each.rule)}</b><p>{escape(each.symptom.cause)}</p><dl>'
        f"<dt>seen</dt><dd>{escape(each.symptom.evidence)}</dd><dt>change</dt><dd>{escape(each.symptom.change)}</dd>"
        "</dl></div>"
        for each in found
    )
    return f'<h3>Likely causes</h3><div class="causes">{"".join(cards)}</div>'


def _disputes(found: SampleSet, view: RunView) -> str:
    rows = "".join(_dispute(each, view) for each in found.disputes)
    return (
        f'<h3>{escape(found.title)}</h3><div class="scroll"><table class="disputes"><thead><tr>'
        "<th>token in its text</th><th>sampler</th><th>trainer</th><th>nats</th><th>sample</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _dispute(found: TokenDispute, view: RunView) -> str:
    ids, at = found.rollout.response_ids, found.position
    if view.token_texts is None:
        text = f"<code>token {ids[at]}</code>"
    else:
        pieces = split_text(ids, view.token_texts)
        parts = (
            pieces[max(0, at - _CONTEXT_TOKENS) : at],
            [pieces[at]],
            pieces[at + 1 : at + 1 + _CONTEXT_TOKENS // 2],
        )
        before, token, after = (escape(_visible("".join(part))) for part in parts)
        text = f"<code>{before}<mark>{token}</mark>{after}</code>"
    return (
        f"<tr><td>{text}</td><td>{_probability(found.sampler)}</td><td>{_probability(found.trainer)}</td>"
        f"<td>{found.trainer - found.sampler:+.2f}</td><td>{escape(found.rollout.sample_id)}, token {at + 1}</td></tr>"
    )


def _visible(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")


def _probability(logprob: float) -> str:
    """`12.3%`, `4.1e-6`."""
    value = math.exp(logprob)
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.1e}".replace("e-0", "e-")
