"""Documents of plugins' views (`framework.views`): of a running program, or of a dump of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlencode

import orjson

from multisched.cli.dump import Dump, buildable, cluster_of
from multisched.cli.options import QueryError
from multisched.cli.server import Server, ask, code_of
from multisched.config.options import ExitCode
from multisched.framework.views import Document, NoViewError, ViewQuery

NOT_YET: Final = 503
"""Status of `NoViewError` if the data for the document has not been learned yet."""
TIMEOUT_S: Final = 60.0
"""A document about a large cluster takes seconds."""


def document_of(source: Server | Dump, view: str, query: ViewQuery, *, fields: Sequence[str] = ()) -> Document:
    """Returns the document, which is the same from a server and from a dump. `fields`: required in this version. Raises QueryError."""
    body = _of_dump(source, view, query) if isinstance(source, Dump) else _of_server(source, view, query)
    try:
        found: Document = orjson.loads(body)
        for field in fields:
            found[field]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        name = source.path if isinstance(source, Dump) else source.url
        raise QueryError(f"{name} is not a multisched of this version: {error!r}", ExitCode.PROBLEM) from error
    return found


def document_if_shown(source: Server | Dump, view: str, query: ViewQuery, *, fields: Sequence[str]) -> Document | None:
    """The same as `document_of`; None if no plugin of the domain that the query names has the view."""
    try:
        return document_of(source, view, query, fields=fields)
    except QueryError as error:
        if error.code is ExitCode.USAGE:
            return None
        raise


@contextmanager
def shown(name: object, hint: str = "") -> Iterator[None]:
    """Adds the source's name to a NoViewError; `hint`: advice if the data is only missing for now."""
    try:
        yield
    except NoViewError as error:
        more = hint if error.status == NOT_YET else ""
        raise QueryError(f"{name}: {error}{more}", code_of(error.status)) from error


def _of_server(server: Server, view: str, query: ViewQuery) -> bytes:
    path = f"/api/v1/{view}/{query.name}"
    return ask(server, f"{path}?{urlencode(query.options)}" if query.options else path, timeout_s=TIMEOUT_S)


def _of_dump(dump: Dump, view: str, query: ViewQuery) -> bytes:
    import anyio

    from multisched.shell.plugin_views import ProgramViews
    from multisched.whatif.sandbox import SchedulerSandbox

    known = cluster_of(dump)
    with buildable(), shown(dump.path, dump.hint):
        views = ProgramViews(SchedulerSandbox(dump.configuration, known).program)
        return anyio.run(views.document, view, query)
