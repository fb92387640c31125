"""A report of any workload: the JSON document, a table, and plots; also as text. `html_report` renders it as HTML.

The same scenario gives the same bytes: everything is in the order of the scenario and rounded to DIGITS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from multisched.model.visible_text import escaped
from multisched.observe.tables import as_table

DIGITS = 6
SHOWN_MAX = 10
"""Maximum number of notes that are shown; the document has all."""

Document = dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """A table, with a sentence before it and a legend after it."""

    intro: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: str


class Plot(msgspec.Struct, frozen=True):
    """A line per policy over a common axis."""

    title: str
    lines: Mapping[str, Sequence[float]]
    """Policy -> values, from zero up, evenly spaced over the axis."""
    labels: Sequence[str]
    """Labels of equal parts of the axis, in order."""
    marks: Sequence[float] = ()
    """Values of horizontal lines."""
    unit: str = ""
    """Unit of the values."""
    axis: str = "time"
    """Name of the axis."""


class Report(msgspec.Struct, frozen=True):
    """The report of a simulation."""

    title: str
    document: Document
    """For `-o json`."""
    policies: tuple[str, ...]
    table: Table
    """For `-o table`."""
    html_table: Table
    """For `-o html`."""
    verdict: str
    """The result in one sentence, see `verdict_of`."""
    notes: tuple[str, ...] = ()
    """Sentences that qualify or explain the figures."""
    plots: Mapping[str, Sequence[Plot]] = {}
    """Heading -> its plots."""


def verdict_of(figure: str, values: Mapping[str, float], unit: str = "", *, most: bool = False) -> str:
    """Returns a sentence that names the policy with the lowest value, or highest with `most`, and the last one. `values`: by policy."""
    order = sorted(values, key=lambda name: values[name], reverse=most)
    best, last = order[0], order[-1]
    shown = {name: f"{value:.3g}{unit}" for name, value in values.items()}
    if shown[best] == shown[last]:
        subject = f"Policy {best} has" if len(order) == 1 else f"All {len(order)} policies have the same"
        return f"{subject} {figure}: {shown[best]}."
    return f"Policy {best} has the {'highest' if most else 'lowest'} {figure}: {shown[best]}; {last} has {shown[last]}."


def text_of(report: Report) -> str:
    """Formats the table, its legend and the notes."""
    table = report.table
    notes = (f"note: {escaped(note)}" for note in shown_notes(report))
    return "\n".join([table.intro, "", as_table(table.head, table.rows), "", table.legend, *notes])


def shown_notes(report: Report) -> Sequence[str]:
    """Returns at most SHOWN_MAX notes, then the number of the others."""
    more = len(report.notes) - SHOWN_MAX
    return [*report.notes[:SHOWN_MAX], f"{more} more; -o json has all"] if more > 0 else report.notes


def rounded(value: float) -> float:
    """Rounds a figure for the document."""
    return round(value, DIGITS)
