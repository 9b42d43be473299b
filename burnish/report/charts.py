"""Charts as SVG text, drawn here so that a report reads without scripts, on paper and in a locked-down viewer.

`page.js` only adds the value under the pointer, from the data each chart carries.
"""

import json
import math
from collections.abc import Sequence
from html import escape

from burnish.report.curves import Chart, Line

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 26
COLOURS = 6
DOTS_UP_TO = 40


def draw(chart: Chart) -> str:
    """The chart as one `<figure>`."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points if y is not None]
    ys += [end for line in chart.lines for _, low, high in line.band for end in (low, high)]
    if not ys:
        return ""
    x_low, x_high = _padded(min(xs), max(xs), 0.0)
    # Small lines still look flat where the change is rounding: never zoom in past a millionth.
    y_low, y_high = _padded(min(ys), max(ys), 0.06)

    def place_x(value: float) -> float:
        return LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in ticks(y_low, y_high, 5):
        y = place_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{format_value(tick, chart.unit)}</text>'
        )
    for tick in [tick for tick in ticks(x_low, x_high, 6) if tick == int(tick)] or [x_low]:
        parts.append(f'<text x="{place_x(tick):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    for border in chart.borders:
        x = place_x(border)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for index, line in enumerate(chart.lines):
        colour = f"c{index % COLOURS}"
        if len(line.band) > 1:
            edge = [(place_x(x), place_y(high)) for x, _, high in line.band]
            edge += [(place_x(x), place_y(low)) for x, low, _ in reversed(line.band)]
            parts.append(f'<polygon class="band {colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in edge)}"/>')
        for run in unbroken(line):
            spots = [(place_x(x), place_y(y)) for x, y in run]
            if len(spots) > 1:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
                parts.append(f'<polyline class="line {colour}" points="{path}"/>')
            if len(spots) == 1 or len(line.points) <= DOTS_UP_TO:
                parts += [f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in spots]
    data = {
        "x": [x_low, x_high],
        "xTitle": chart.x_title,
        "unit": chart.unit,
        "lines": [{"label": line.label, "points": [[x, _short(y)] for x, y in line.points]} for line in chart.lines],
    }
    legend = ""
    if len(chart.lines) > 1:
        keys = (f'<span class="c{i % COLOURS}">{escape(line.label)}</span>' for i, line in enumerate(chart.lines))
        legend = f'<p class="legend">{"".join(keys)}</p>'
    note = f"<small>{escape(chart.note)}</small>" if chart.note else ""
    latest = _latest(chart)
    return (
        f'<figure class="chart" data-chart="{escape(json.dumps(data))}">'
        f"<figcaption><b>{escape(chart.title)}</b>{latest}{note}</figcaption>{legend}"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)} by {chart.x_title}">'
        f"{''.join(parts)}"
        f'<text class="axis" x="{LEFT - 12}" y="{HEIGHT - 10}" text-anchor="end">{chart.x_title}</text>'
        f"</svg></figure>"
    )


def unbroken(line: Line) -> list[list[tuple[float, float]]]:
    """The stretches of a line between its missing values."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers (1, 2, 5 times a power of ten) inside [low, high]."""
    span = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(span))
    step = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= span), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


def format_value(value: float, unit: str = "") -> str:
    """Three significant digits, `share` in per cent."""
    if unit == "share":
        return f"{value * 100:.3g}%"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _latest(chart: Chart) -> str:
    """First and last value of a single line: what most people read a curve for."""
    if len(chart.lines) != 1:
        return ""
    values = [y for _, y in chart.lines[0].points if y is not None]
    first, last = format_value(values[0], chart.unit), format_value(values[-1], chart.unit)
    return f"<span>{first if len(values) == 1 else f'{first} → {last}'}</span>"


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    if high - low < 1e-6 * max(abs(low), abs(high)) or high == low:
        room = abs(high) * 0.1 or 0.5
        return low - room, high + room
    room = (high - low) * share
    return low - room, high + room


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def bar(segments: Sequence[tuple[str, float]], total: float, offset: float = 0.0) -> str:
    """A horizontal bar of (class, amount) segments on a scale from 0 to `total`, as SVG."""
    parts = []
    position = offset
    for name, amount in segments:
        width = amount / total * 1000
        if width > 0:
            parts.append(
                f'<rect class="{name}" x="{position / total * 1000:.2f}" width="{width:.2f}" height="10" y="0"/>'
            )
        position += amount
    return (
        f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )
