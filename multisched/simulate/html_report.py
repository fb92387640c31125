"""The report as one self-contained HTML page with verdict, table of figures and plots, in the style of the web page."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from multisched.model.visible_text import escaped, escaped_html
from multisched.page.report import report_page, report_script, report_table
from multisched.simulate.report import Plot, Report, shown_notes

SIMULATED = "All figures are results of a simulation with the real scheduler in virtual time."


def html_of(report: Report) -> str:
    """Returns the whole page."""
    plots = [
        {"place": f"plots-{number}", "plots": list(map(_plot, some))}
        for number, some in enumerate(report.plots.values())
    ]
    document = orjson.dumps(plots).decode()
    return report_page(
        escaped_html(report.title),
        escaped_html(report.verdict),
        _body(report),
        document,
        report_script("simulation.js"),
    )


def _body(report: Report) -> Iterator[str]:
    table = report.html_table
    yield f"<p>{escaped_html(table.intro)} {SIMULATED}</p>"
    texts = 2 if "dimension" in table.head else 1
    yield report_table("Results of each policy", table.head, table.rows, texts, escaped_html)
    yield f'<p class="soft">{escaped_html(table.legend)}</p>'
    if notes := shown_notes(report):
        yield f"<ul>{''.join(f'<li>{escaped_html(note)}</li>' for note in notes)}</ul>"
    yield "<noscript><p>The plots need JavaScript; the table contains the figures.</p></noscript>"
    for number, heading in enumerate(report.plots):
        yield f'<h2>{escaped_html(heading)}</h2><div id="plots-{number}"></div>'


def _plot(plot: Plot) -> dict[str, object]:
    lines = [{"name": escaped(name), "values": list(values)} for name, values in plot.lines.items()]
    texts = {"title": escaped(plot.title), "unit": escaped(plot.unit), "axis": escaped(plot.axis)}
    return {**texts, "lines": lines, "labels": list(map(escaped, plot.labels)), "marks": list(plot.marks)}
