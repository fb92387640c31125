"""Documents of PeakForecast by name, from a running forecast or from profiles alone.

Imported on the first request, because scheduling does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from domains.forecast.views import documents, node_documents, report_document
from domains.forecast.views.forecast_snapshot import ForecastSnapshot
from multisched.framework.views import Document, NoViewError, ViewQuery, unknown_parameter

DOCUMENTS: Final[Mapping[str, Callable[[ForecastSnapshot, ViewQuery], Document]]] = {
    "services": documents.services,
    "service": documents.service,
    "nodes": node_documents.nodes,
    "node": node_documents.node,
    "at": node_documents.at,
    "backtest": documents.backtest,
    "report": report_document.report,
}


OPTIONS: Final[Mapping[str, str]] = {"service": "name", "node": "name", "at": "moment"}
"""Document -> its required option."""
LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "services": ("limit", "match"),
    "nodes": ("limit", "offset", "match"),
    "at": ("limit",),
}
"""Document -> options that select a part of its list."""


def document_of(query: ViewQuery) -> Callable[[ForecastSnapshot], Document]:
    """Returns the function that makes the document from a snapshot. Raises NoViewError for an unknown name or option."""
    make = DOCUMENTS.get(query.name)
    if make is None:
        raise NoViewError(f"forecast has no document {query.name}; write one of {', '.join(DOCUMENTS)}")
    required = [OPTIONS[query.name]] if query.name in OPTIONS else []
    known = [*required, *LISTS.get(query.name, ()), "domain"]
    if unknown := unknown_parameter(query.options, known):
        raise NoViewError(unknown, status=400)
    return partial(_made, make, query)


def _made(
    make: Callable[[ForecastSnapshot, ViewQuery], Document], query: ViewQuery, snapshot: ForecastSnapshot
) -> Document:
    return make(snapshot, query)
