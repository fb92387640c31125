"""Reports domains that lack the plugin for objects in the cluster, such as quotas without effect and gangs that start in parts.

Kinds that some domain's plugin reads are watched and looked up in the store. For other kinds, one object is listed
periodically. `health_of` shows `remarks` in `/readyz?verbose`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from multisched.client.errors import ApiError, Forbidden, NotFound
from multisched.client.lister import MalformedAnswerError, list_pages
from multisched.framework.gangs import GANG_PLUGIN
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Transport, TransportError
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.plugins.quota.quota_ledger import QUOTA
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from multisched.shell.domain import DomainWorker
from multisched.shell.object_watch import ObjectWatch

PERIOD_S: Final = 300.0
"""Period of the list requests for kinds that are not watched."""


class ReadingPlugin(msgspec.Struct, frozen=True):
    """A plugin, the kinds that have no effect without it, and the consequence."""

    name: str
    kinds: tuple[ObjectKind, ...]
    without: str


READING_PLUGINS: Final = (
    ReadingPlugin(QUOTA, QUOTA_KINDS, "do not limit its pods"),
    ReadingPlugin(GANG_PLUGIN, GangScheduling.status_kinds, "are ignored: members of a gang start one by one"),
)


class MissingPlugins:
    """Search for objects in the cluster that have no effect on the pods of a domain."""

    def __init__(
        self, transport: Transport, objects: ObjectWatch, workers: Callable[[], Sequence[DomainWorker]]
    ) -> None:
        self._transport = transport
        self._objects = objects
        self._workers = workers
        self._unwatched = [kind for one in READING_PLUGINS for kind in one.kinds if kind not in objects.ingests]
        self._found: set[ObjectKind] = set()
        """Unwatched kinds of which the latest list request returned an object."""

    async def run(self) -> None:
        """Checks periodically until cancelled. Returns at once if every kind is watched."""
        while self._unwatched:
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Lists one object of each unwatched kind. A 404 or 403 counts as no object."""
        for kind in self._unwatched:
            try:
                has_objects = await self._has_objects(kind)
            except (Forbidden, NotFound):
                has_objects = False
            except (ApiError, TransportError, MalformedAnswerError):
                continue  # keeps the previous answer until the next period
            (self._found.add if has_objects else self._found.discard)(kind)

    async def _has_objects(self, kind: ObjectKind) -> bool:
        pages = list_pages(self._transport, kind.definition.path, page_items=1)
        async with contextlib.aclosing(pages):
            async for page in pages:
                return bool(page.items)
        return False

    def remarks(self) -> Iterator[str]:
        """Yields a message for each plugin that a domain lacks although the cluster has objects of its kinds."""
        domains = [(worker.name, {built.plugin.name for built in worker.plugins.built}) for worker in self._workers()]
        for one in READING_PLUGINS:
            lacking = [name for name, plugins in domains if one.name not in plugins]
            there = [kind.definition for kind in one.kinds if kind in self._found or self._objects.has(kind)]
            if lacking and there:
                kinds = " and ".join(f"{definition.name}.{definition.group}" for definition in there)
                yield f"{', '.join(lacking)}: no {one.name} in the profile: the {kinds} objects of the cluster {one.without}"
