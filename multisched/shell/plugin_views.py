"""Serves the views of plugins (`framework.views.ViewedPlugin`), of a running program or of a sandbox over a dump.

A plugin copies its data on the event loop in small pieces. Documents are built and encoded in a thread, VIEWS_MAX at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import anyio
import orjson

from multisched.framework.background import InThread
from multisched.framework.leading import FindLeader, led_here, require_led
from multisched.framework.registry import implements
from multisched.framework.views import NoViewError, ViewedPlugin, ViewPorts, ViewQuery
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.shell.workers.background_threads import in_worker_thread

VIEWS_MAX: Final = 2
"""Maximum number of documents built concurrently."""
QUERIES_MAX: Final = 8
"""Maximum number of requests in progress or waiting; further ones are refused with 429."""


class ProgramViews:
    """The `observe.plugin_view.ViewSource` of a program."""

    def __init__(
        self, program: Program, in_thread: InThread = in_worker_thread, find_leader: FindLeader = led_here
    ) -> None:
        """`in_thread`: runs the building of documents in a thread; simulations replace it."""
        self._program = program
        self._find_leader = find_leader
        self._in_thread = in_thread
        self._places = anyio.Semaphore(VIEWS_MAX)
        self._queries = 0

    async def document(self, view: str, query: ViewQuery) -> bytes:
        """See `ViewSource`."""
        worker, plugin = self._plugin(view, query.options.get("domain", ""))
        require_led(self._find_leader, worker.name)
        if self._queries >= QUERIES_MAX:
            raise NoViewError("too many queries at once; retry in a moment", status=429)

        self._queries += 1
        try:
            async with self._places:
                ports = ViewPorts(self._program.clock, self._program.router.rows_of(worker).rows.copy())
                make = await plugin.show(query, ports)
                return await self._in_thread(lambda: orjson.dumps(make()))
        finally:
            self._queries -= 1

    def _plugin(self, view: str, domain: str) -> tuple[DomainWorker, ViewedPlugin]:
        """Raises NoViewError."""
        found = [(worker, plugin) for worker, plugin in self._viewed() if plugin.view == view]
        if not found:
            raise NoViewError(f"no plugin serves the view {view}")
        chosen = [one for one in found if domain in ("", one[0].name)]
        names = ", ".join(worker.name for worker, _ in found)
        if not chosen:
            raise NoViewError(f"domain {domain} does not serve the view {view}; these domains do: {names}")
        if len(chosen) > 1:
            raise NoViewError(f"several domains serve this view; name one of them: {names}", status=422)
        return chosen[0]

    def _viewed(self) -> Iterator[tuple[DomainWorker, ViewedPlugin]]:
        for worker in self._program.router.workers():
            for built in worker.plugins.built:
                if implements(built.plugin, ViewedPlugin):
                    yield worker, built.plugin
