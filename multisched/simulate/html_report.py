"""The report as one self-contained HTML page: a table of figures, and plots as inline SVG. Each policy keeps its colour."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from multisched.model.visible_text import escaped, escaped_html
from multisched.simulate.report import Report, Table, shown_notes

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 220, 48, 12, 10, 24
COLOURS = ("#2563a8", "#c2571a", "#2d8a57", "#8a4fa3", "#a33a4c", "#5a6b2f", "#1c8a99", "#7a5a2a")
TICKS = 5

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5d6670;--line:#d5dae0;--page:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--line:#3a424c;--page:#15181c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:820px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}h3{font-size:.95rem;margin:1rem 0 0;font-weight:600}
p,li{color:var(--soft)}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--soft)}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}.wide{overflow-x:auto}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}.grid{stroke:var(--line)}
.mark{stroke:var(--soft);stroke-dasharray:4 3}.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}
polyline{fill:none;stroke-width:1.6}
"""


def html_of(report: Report) -> str:
    """Returns the whole page."""
    title = escaped_html(report.title)
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{_prose(report.html_table.intro)}</p>",
        _table(report.html_table),
        _notes(report),
        f"<p>{_legend(report.policies)}</p>",
    ]
    for heading, plots in report.plots.items():
        parts.append(f"<h2>{escaped_html(heading)}</h2>")
        for plot in plots:
            parts += [f"<h3>{escaped_html(plot.title)}</h3>", _plot(plot.lines, plot.labels, plot.marks)]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>'
    )


def _table(table: Table) -> str:
    rows = ("".join(f"<td>{escaped_html(cell)}</td>" for cell in row) for row in table.rows)
    top = "".join(f"<th>{escaped_html(name)}</th>" for name in table.head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
        f"<p>{_prose(table.legend)}</p>"
    )


def _prose(text: str) -> str:
    return html.escape(escaped(text), quote=False)


def _notes(report: Report) -> str:
    notes = shown_notes(report)
    return f"<ul>{''.join(f'<li>{escaped_html(note)}</li>' for note in notes)}</ul>" if notes else ""


def _legend(names: Sequence[str]) -> str:
    return "".join(
        f'<span class="key" style="background:{_colour(i)}"></span>{escaped_html(n)}' for i, n in enumerate(names)
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _plot(lines: Mapping[str, Sequence[float]], labels: Sequence[str], marks: Sequence[float] = ()) -> str:
    """Returns an SVG of one line per policy; the axis begins at zero."""
    highest = max((*marks, *(max(values) for values in lines.values())))
    tick = _tick(highest)
    top = tick * max(1, math.ceil(highest / tick))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def y(value: float) -> float:
        return round(TOP + high * (1 - value / top), 1)

    parts = []
    for number in range(round(top / tick) + 1):
        value = tick * number
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.3g}</text>')
    parts += [f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(m)}" y2="{y(m)}"/>' for m in marks]
    each = max(1, -(-len(labels) // 12))
    for number in range(0, len(labels), each):
        x = round(LEFT + wide * (number + 0.5) / len(labels), 1)
        parts.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="middle">{escaped_html(labels[number])}</text>')
    for number, (name, values) in enumerate(lines.items()):
        step = wide / len(values)
        points = " ".join(f"{LEFT + step * (i + 0.5):.1f},{y(v)}" for i, v in enumerate(values))
        parts.append(
            f'<polyline stroke="{_colour(number)}" points="{points}"><title>{escaped_html(name)}</title></polyline>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _tick(highest: float) -> float:
    """Returns the distance of grid lines: 1, 2 or 5 times a power of ten, so that at most TICKS reach the highest value."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest / TICKS))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * TICKS >= highest)
