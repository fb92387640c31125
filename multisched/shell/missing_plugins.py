"""Reports domains whose profile lacks the plugin that reads objects of the cluster: quotas that limit nobody, gangs that start in parts.

Kinds that some domain's plugin reads are watched, and looked up in the store. Of other kinds one object is asked for
from time to time. Owns the answers. `Program` runs it; `health_of` shows `remarks` in `/readyz?verbose`.
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
"""Between two questions whether there are objects of kinds that are not watched."""


class ReadingPlugin(msgspec.Struct, frozen=True):
    """A plugin, the kinds that only it gives an effect, and what happens without it."""

    name: str
    kinds: tuple[ObjectKind, ...]
    without: str


READING_PLUGINS: Final = (
    ReadingPlugin(QUOTA, QUOTA_KINDS, "do not limit its pods"),
    ReadingPlugin(GANG_PLUGIN, GangScheduling.status_kinds, "are ignored: members of a gang start one by one"),
)


class MissingPlugins:
    """Knows which objects of the cluster have no effect on the pods of which domain."""

    def __init__(
        self, transport: Transport, objects: ObjectWatch, workers: Callable[[], Sequence[DomainWorker]]
    ) -> None:
        self._transport = transport
        self._objects = objects
        self._workers = workers
        self._unwatched = [kind for one in READING_PLUGINS for kind in one.kinds if kind not in objects.ingests]
        self._found: set[ObjectKind] = set()
        """Unwatched kinds of which there was an object when it was last asked."""

    async def run(self) -> None:
        """Asks from time to time until cancelled. Returns at once if every kind is watched."""
        while self._unwatched:
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Asks for one object of each unwatched kind. A kind that is not served, or must not be read, has none."""
        for kind in self._unwatched:
            try:
                has_objects = await self._has_objects(kind)
            except (Forbidden, NotFound):
                has_objects = False
            except (ApiError, TransportError, MalformedAnswerError):
                continue  # no answer: what was known stays, and the next look asks again
            (self._found.add if has_objects else self._found.discard)(kind)

    async def _has_objects(self, kind: ObjectKind) -> bool:
        pages = list_pages(self._transport, kind.definition.path, page_items=1)
        async with contextlib.aclosing(pages):
            async for page in pages:
                return bool(page.items)
        return False

    def remarks(self) -> Iterator[str]:
        """Yields a sentence for each plugin that some domain lacks although the cluster has objects of its kinds."""
        domains = [(worker.name, {built.plugin.name for built in worker.plugins.built}) for worker in self._workers()]
        for one in READING_PLUGINS:
            lacking = [name for name, plugins in domains if one.name not in plugins]
            there = [kind.definition for kind in one.kinds if kind in self._found or self._objects.has(kind)]
            if lacking and there:
                kinds = " and ".join(f"{definition.name}.{definition.group}" for definition in there)
                yield f"{', '.join(lacking)}: no {one.name} in the profile: the {kinds} objects of the cluster {one.without}"
