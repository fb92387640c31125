"""Which plugin says what stands in the status of gangs, quotas and their like, and under which lease it is written.

Several domains of one process, and several processes, have the same plugin and know the same object. One of them writes
it: the process that leads the first, by name, of the domains in which the plugin is enabled. Configuration alone
decides that. So processes agree, and never write by turns what they see differently for a moment. In a rolling update
two configurations are in use for a while. Then the writer's growing pauses bound what both may write.

A new leader looks at all objects. So does everybody every RENEW_S, and after marks were dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

import anyio
import msgspec

from multisched.client.limits import WriteLimiter
from multisched.client.object_feed import ReflectorHandler
from multisched.client.reflector import Reflector
from multisched.client.status_writer import DUE_MAX, ApiStatusWriter, StatusStatistics
from multisched.framework.object_status import ObjectKey, ObjectStatus, PendingPodsPlugin, StatusPlugin
from multisched.framework.objects_view import ObjectsView
from multisched.framework.ports import Clock, LeaseHolder
from multisched.framework.registry import PluginSet, PluginSetupError, implements
from multisched.framework.runner import PluginFailure
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.wire import Transport
from multisched.shell.domain import DomainWorker

LOOK_S: Final = 30.0
"""Between two looks whether marks were dropped."""
RENEW_S: Final = 300.0
"""Between two looks at all objects."""
ROOM_S: Final = 1.0
"""Between two looks whether there is room for more marks."""


class _Source(msgspec.Struct, frozen=True):
    """Who says it, and in which domain."""

    plugin: StatusPlugin
    worker: DomainWorker


class Statuses:
    """`framework.object_status.StatusMarks` of a program, and what its `ApiStatusWriter` asks."""

    def __init__(
        self, transport: Transport, limiter: WriteLimiter, clock: Clock, objects: ObjectsView, *, timeout_s: float
    ) -> None:
        self._objects = objects
        self._writer = ApiStatusWriter(transport, limiter, clock, self, timeout_s=timeout_s)
        self._sources: dict[ObjectKind, _Source] = {}
        self.reflectors: Mapping[ObjectKind, Reflector] = {}
        """Which say in what version each kind is served."""
        self._of_pending: dict[str, tuple[PendingPodsPlugin, DomainWorker]] = {}

    def serve(self, workers: Iterable[DomainWorker]) -> None:
        """Takes up the plugins of all domains, in the place of those before.

        Raises PluginSetupError where two of them would write the same kind.
        """
        workers = sorted(workers, key=lambda one: one.name)
        refuse_two_writers(worker.plugins for worker in workers)
        self._sources, self._of_pending = {}, {}
        for worker in workers:
            for built in worker.plugins.built:
                if implements(built.plugin, StatusPlugin):
                    for kind in built.plugin.status_kinds:
                        self._sources.setdefault(kind, _Source(built.plugin, worker))
                if implements(built.plugin, PendingPodsPlugin):
                    self._of_pending.setdefault(built.plugin.name, (built.plugin, worker))

    @property
    def kinds(self) -> tuple[ObjectKind, ...]:
        """Whose statuses are written."""
        return tuple(self._sources)

    def watching(self, kind: ObjectKind, handler: ReflectorHandler) -> ReflectorHandler:
        """The handler of a kind's reflector, watched if statuses of the kind are written."""
        if kind not in self._sources:
            return handler
        return self._writer.standing.watching(kind, handler, self._changed)

    def _changed(self, key: ObjectKey) -> None:
        """It came, changed or went. One that went is marked as well: its plugin may have to say something of others."""
        if self._objects.get(*key) is None:
            self._writer.forget(key)
        self._writer.mark(key)

    @property
    def hears_of_pending(self) -> bool:
        """Some plugin wants to know of pods that wait."""
        return bool(self._of_pending)

    def pending_changed(self, pod: Pod) -> None:
        """A pod came to wait, changed, or waits no more and has no node."""
        for plugin, worker in self._of_pending.values():
            with contextlib.suppress(PluginFailure):
                worker.runner.call(plugin, "Status", plugin.pending_changed, pod)

    # -- StatusMarks -----------------------------------------------------------------------------------------------

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        if kind in self._sources:
            self._writer.mark((kind, namespace, name))

    def mark_all(self, kind: ObjectKind) -> None:
        for item in self._objects.all(kind) if kind in self._sources else ():
            self._writer.mark((kind, item.namespace, item.name))

    # -- what the writer asks --------------------------------------------------------------------------------------

    def lease_of(self, kind: ObjectKind) -> LeaseHolder | None:
        """See `StatusOffer`."""
        worker = self._sources[kind].worker
        return worker.lease if worker.is_leading else None

    def path_of(self, kind: ObjectKind) -> str:
        """See `StatusOffer`."""
        reflector = self.reflectors.get(kind)
        return kind.definition.path if reflector is None else reflector.path

    def status_of(self, key: ObjectKey) -> ObjectStatus | None:
        """See `StatusOffer`. What a plugin raises is counted as its failure."""
        source = self._sources[key[0]]
        plugin, runner = source.plugin, source.worker.runner
        try:
            found = runner.call(plugin, "Status", plugin.status_of, *key)
            if found is None or isinstance(found, ObjectStatus):
                return found
            runner.failure(plugin, "Status", f"returned {type(found).__name__}, not ObjectStatus")
        except PluginFailure:
            pass
        return None

    # -- running ---------------------------------------------------------------------------------------------------

    def lead(self, worker: DomainWorker) -> None:
        """The domain is led from now on: what was not written before is written now."""
        for kind, source in self._sources.items():
            if source.worker is worker:
                self.mark_all(kind)

    def history_rewritten(self) -> None:
        """A backup was restored: nothing that was written need be there any more."""
        self._writer.forget_written()
        for kind in self._sources:
            self.mark_all(kind)

    async def run(self) -> None:
        """Writes until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._writer.run)
            since_s = 0.0
            while True:
                await anyio.sleep(LOOK_S)
                since_s += LOOK_S
                if self._writer.is_short or since_s >= RENEW_S:
                    self._writer.is_short, since_s = False, 0.0
                    await self._renew()

    async def _renew(self) -> None:
        """Marks all objects, as there is room for them."""
        for kind in self._sources:
            for key in [(kind, item.namespace, item.name) for item in self._objects.all(kind)]:
                while self._writer.backlog > DUE_MAX // 2:  # noqa: ASYNC110 - there is room as time goes by
                    await anyio.sleep(ROOM_S)
                self._writer.mark(key)

    def statistics(self) -> StatusStatistics:
        return self._writer.statistics()


def refuse_two_writers(profiles: Iterable[PluginSet]) -> None:
    """Raises PluginSetupError if two plugins of these profiles would write the status of one kind."""
    writers: dict[ObjectKind, str] = {}
    for profile in profiles:
        for built in profile.built:
            for kind in built.plugin.status_kinds if implements(built.plugin, StatusPlugin) else ():
                first = writers.setdefault(kind, built.plugin.name)
                if first != built.plugin.name:
                    raise PluginSetupError(
                        f"plugins {first} and {built.plugin.name} both write the status of {kind.value}; disable one"
                    )
