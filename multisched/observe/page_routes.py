"""Routes of the web page: its files, and the documents that only it reads. Reads only.

The files are the same for every cluster, so they are open, as a login page is: a browser cannot send a token with the address of a page.
All documents need the same authorization as the rest of `/api/v1`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from multisched.model.visible_text import escaped_lines
from multisched.observe.event_stream import EventStreams, StreamLimits, TooManyStreamsError
from multisched.observe.nodes_view import NODES_SHOWN, NODES_SHOWN_MAX, NodesQuery, NodesSource, NoNodeError
from multisched.observe.overview_view import DECISIONS_SHOWN, DECISIONS_SHOWN_MAX, OverviewSource, encode
from multisched.observe.pending_view import PendingSource
from multisched.observe.preemptions_view import PREEMPTIONS_SHOWN, PREEMPTIONS_SHOWN_MAX, PreemptionsSource
from multisched.observe.queue_view import NoDomainError
from multisched.observe.shared_documents import SharedDocuments
from multisched.page.files import INDEX, POLICY, page_files

PAGE_PATH: Final = "/page/{path:.+}"
OVERVIEW_PATH: Final = "/api/v1/overview"
STREAM_PATH: Final = f"{OVERVIEW_PATH}/stream"
FIND_PATH: Final = f"{OVERVIEW_PATH}/find"
DECISIONS_PATH: Final = "/api/v1/decisions"
PREEMPTIONS_PATH: Final = f"{DECISIONS_PATH}/preemptions"
PENDING_PATH: Final = "/api/v1/pending"
NODES_PATH: Final = "/api/v1/nodes"
NODE_PATH: Final = f"{NODES_PATH}/{{name}}"
PAGE_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    OVERVIEW_PATH: (),
    STREAM_PATH: (),
    FIND_PATH: ("text",),
    DECISIONS_PATH: ("domain", "limit"),
    PREEMPTIONS_PATH: ("plugin", "limit"),
    PENDING_PATH: ("group",),
    NODES_PATH: ("domain", "resource", "match", "offset", "limit"),
    NODE_PATH: (),
}
OFFSET_MAX: Final = 999_999
GROUP_CHARS_MAX: Final = 512
MATCH_CHARS_MAX: Final = 317
"""A namespace, a slash and a name."""
HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class PageSources(msgspec.Struct, frozen=True):
    """The sources of the page's documents."""

    overview: OverviewSource
    pending: PendingSource
    nodes: NodesSource
    preemptions: PreemptionsSource


class PageRoutes:
    """Handlers of the page. `user_of`: the name of the user of a request that was authorized; empty without users."""

    def __init__(
        self,
        sources: PageSources,
        user_of: Callable[[web.Request], str],
        number: Callable[[web.Request, str, int, int], int],
        shared: SharedDocuments,
        limits: StreamLimits | None = None,
    ) -> None:
        """`number`: parses a number of the query: its name, default and maximum."""
        self._sources = sources
        self._user_of = user_of
        self._number = number
        self._shared = shared
        self.streams = EventStreams(self._overview_line, limits)

    def add_to(self, application: web.Application) -> None:
        """Adds all paths, before those of views, and the end of the streams at shutdown."""
        router = application.router
        router.add_get("/", self._file)
        router.add_get(PAGE_PATH, self._file)
        router.add_get(OVERVIEW_PATH, self._overview)
        router.add_get(STREAM_PATH, self._stream, allow_head=False)
        router.add_get(FIND_PATH, self._find)
        router.add_get(DECISIONS_PATH, self._decisions)
        router.add_get(PREEMPTIONS_PATH, self._preemptions)
        router.add_get(PENDING_PATH, self._pending)
        router.add_get(NODES_PATH, self._nodes)
        router.add_get(NODE_PATH, self._node)
        application.on_shutdown.append(self._end_streams)

    async def _end_streams(self, _: web.Application) -> None:
        await self.streams.close()

    async def _overview_line(self) -> bytes:
        body = encode(await self._sources.overview.overview())
        self._shared.note_overview()
        return body

    async def _file(self, request: web.Request) -> web.Response:
        found = page_files().get(request.match_info.get("path", INDEX))
        if found is None:
            return _text(404, "the page has no such file")
        headers = {**HEADERS, "Content-Security-Policy": POLICY, "Content-Type": found.content_type}
        return web.Response(body=found.body, headers=headers)

    async def _overview(self, request: web.Request) -> web.Response:
        return await self._document(request, self._overview_line)

    async def _document(self, request: web.Request, make: Callable[[], Awaitable[bytes]]) -> web.Response:
        """Returns a document, which may be computed for several requests. Turns errors of its source into 404."""
        try:
            body = await self._shared.body(request.path_qs, make)
        except (NoDomainError, NoNodeError) as error:
            return _text(404, str(error))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self.streams.serve(request, self._user_of(request))
        except TooManyStreamsError as error:
            return _text(429, str(error), {"Retry-After": "10"})

    async def _find(self, request: web.Request) -> web.Response:
        """Returns pods and nodes by a part of their names: `?text=`."""
        text = request.query.get("text", "").strip()[:MATCH_CHARS_MAX]
        return await self._document(request, lambda: _encoded(self._sources.overview.find(text)))

    async def _decisions(self, request: web.Request) -> web.Response:
        """Returns recent placements: `?domain=NAME` of one domain, `?limit=N`."""
        limit = self._number(request, "limit", DECISIONS_SHOWN, DECISIONS_SHOWN_MAX)
        domain, source = request.query.get("domain") or None, self._sources.overview
        return await self._document(request, lambda: _encoded(source.decisions(domain=domain, limit=limit)))

    async def _preemptions(self, request: web.Request) -> web.Response:
        """Returns the latest preemptions: `?plugin=NAME` of one plugin, `?limit=N`."""
        limit = self._number(request, "limit", PREEMPTIONS_SHOWN, PREEMPTIONS_SHOWN_MAX)
        plugin, source = request.query.get("plugin", ""), self._sources.preemptions
        return await self._document(request, lambda: _encoded(source.preemptions(plugin=plugin, limit=limit)))

    async def _pending(self, request: web.Request) -> web.Response:
        """Returns groups of pending pods; `?group=KEY`: with pods of that group."""
        group = request.query.get("group", "")[:GROUP_CHARS_MAX]
        return await self._document(request, lambda: _encoded(self._sources.pending.pending(group=group)))

    async def _nodes(self, request: web.Request) -> web.Response:
        """Returns the fullest nodes: `?domain=`, `?resource=` that sorts them, `?match=` part of a name, `?offset=`, `?limit=`."""
        query = NodesQuery(
            domain=request.query.get("domain") or None,
            resource=request.query.get("resource", "") or "cpu",
            match=request.query.get("match", "")[:MATCH_CHARS_MAX],
            offset=self._number(request, "offset", 0, OFFSET_MAX),
            limit=self._number(request, "limit", NODES_SHOWN, NODES_SHOWN_MAX),
        )
        return await self._document(request, lambda: _encoded(self._sources.nodes.nodes(query)))

    async def _node(self, request: web.Request) -> web.Response:
        return await self._document(request, lambda: _encoded(self._sources.nodes.node(request.match_info["name"])))


def is_page_file(request: web.Request) -> bool:
    """Reports whether the request reads a file of the page. Other paths below `/page/` are not open."""
    if request.method not in ("GET", "HEAD"):
        return False
    path = request.path
    return path == "/" or (path.startswith("/page/") and path.removeprefix("/page/") in page_files())


async def _encoded(document: Awaitable[object]) -> bytes:
    return encode(await document)


def _text(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{escaped_lines(message)}\n", headers={**HEADERS, **(headers or {})})
