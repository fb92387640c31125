"""Output of `multisched forecast`: gets documents from a running program, a dump or a profiles file, and formats them.

Documents have the same form for all sources (`domains.forecast.views.show`); `tables` and `page` format them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from domains.forecast.commands import tables
from domains.forecast.commands.query_source import QuerySource
from multisched.cli.options import QueryError
from multisched.cli.views import document_of, shown
from multisched.framework.views import Document, ViewQuery
from multisched.observe.tables import as_document

VIEW: Final = "forecast"
STEP_S: Final = 300
"""Step of histories read from files (--usage); slots longer than a step show mean and highest sample."""


def services(source: QuerySource, output: str) -> str:
    """Returns the output of the command. Raises QueryError, like all functions below."""
    return _rendered(document(source, "services"), output, tables.services)


def service(source: QuerySource, name: str, output: str) -> str:
    return _rendered(document(source, "service", name=name), output, tables.service)


def nodes(source: QuerySource, limit: int, output: str) -> str:
    return _rendered(document(source, "nodes"), output, tables.nodes, limit)


def node(source: QuerySource, name: str, limit: int, output: str) -> str:
    return _rendered(document(source, "node", name=name), output, tables.node, limit)


def at(source: QuerySource, moment: str, limit: int, output: str) -> str:
    return _rendered(document(source, "at", moment=moment), output, tables.at, limit)


def backtest(source: QuerySource, limit: int, output: str) -> str:
    return _rendered(document(source, "backtest"), output, tables.backtest, limit)


def report(source: QuerySource, usage: Sequence[Path], output: str) -> str:
    """Returns the HTML page, or its document as JSON."""
    from domains.forecast.commands.page import page_of

    found = document(source, "report")
    if usage:
        found = _with_usage(found, usage)
    return as_document(found, output) if output == "json" else page_of(found)


def document(source: QuerySource, what: str, **options: str) -> Document:
    """Gets a document from the source. Raises QueryError."""
    if source.domain:
        options["domain"] = source.domain
    query = ViewQuery(what, options)
    if isinstance(source.source, Path):
        return _of_file(source.source, query, source.now)
    return document_of(source.source, VIEW, query, fields=("version", "zone"))


def _rendered(found: Document, output: str, render: Any, *more: int) -> str:
    if output in ("json", "yaml"):
        return as_document(found, output)
    text: str = render(found, *more, is_wide=output == "wide")
    return text


def _of_file(file: Path, query: ViewQuery, now: datetime) -> Document:
    from domains.forecast.curves.profiles_file import ProfilesFileError, loads
    from domains.forecast.views import show
    from domains.forecast.views.forecast_snapshot import ForecastSnapshot

    try:
        profiles = loads(file.read_bytes())
    except OSError as error:
        text = f"{file}: {error.strerror}; name the profilesFile of PeakForecast"
        raise QueryError(text) from error
    except ProfilesFileError as error:
        raise QueryError(f"{file}: {error}") from error
    with shown(file):
        found: Document = orjson.loads(
            orjson.dumps(show.document_of(query)(ForecastSnapshot(profiles, now.timestamp())))
        )
        return found


def _with_usage(found: Document, files: Sequence[Path]) -> Document:
    """Returns the report with the history of these files; `history.notes` lists skipped data. Raises QueryError."""
    from domains.forecast.history.source import SourceError
    from domains.forecast.history.usage_csv import read_usage
    from domains.forecast.settings.sources import Dimension
    from domains.forecast.views.report_document import with_history
    from multisched.forecasting.recent import DAYS, recent_of
    from multisched.forecasting.time_units import DAY_S
    from multisched.framework.measures import Grid

    slot_s = int(found["slotSeconds"])
    step_s = min(STEP_S, slot_s)
    names: list[str] = found["dimensions"]
    grid = Grid(0.0, float(step_s), (DAYS + 1) * DAY_S // step_s)
    try:
        reading = read_usage([str(file) for file in files], {name: Dimension(name) for name in names}, grid)
    except SourceError as error:
        raise QueryError(str(error)) from error
    known = {one["service"] for one in found["services"]}
    if known.isdisjoint(reading.usage.services):
        theirs, ours = ", ".join(reading.usage.services[:3]), ", ".join(sorted(known)[:3])
        text = (
            f"{files[0]}: none of its services is in the profiles; services of the file: {theirs or 'none'}; of the profiles:"
            f" {ours or 'none'}"
        )
        raise QueryError(text)
    drawn = with_history(found, recent_of(reading.usage, found["zone"], slot_s))
    return {**drawn, "history": {**drawn["history"], "notes": list(reading.notes)}}
