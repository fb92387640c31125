"""Chooses the plugin that computes the status of a gang, quota or similar object, and the lease under which it is written.

Several domains of one process, and several processes, may have the same plugin and watch the same object. Only one process
writes its status: the one that leads the first domain, by name, in which the plugin is enabled. This depends on
configuration alone, so two processes never overwrite each other's status in turn. During a rolling update two configurations
may be in use; the writer's exponential backoff then limits the number of conflicting writes.

A new leader marks all objects for a write. Every process also marks all objects every RENEW_S, and after marks were dropped.
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
"""Interval at which `run` checks whether marks were dropped."""
RENEW_S: Final = 300.0
"""Interval at which all objects are marked again."""
ROOM_S: Final = 1.0
"""Interval at which `_renew` checks whether the backlog has room for more marks."""


class _Source(msgspec.Struct, frozen=True):
    """The plugin that computes a status, and its domain."""

    plugin: StatusPlugin
    worker: DomainWorker


class Statuses:
    """Source of object statuses: `framework.object_status.StatusMarks` for plugins, `StatusOffer` for the `ApiStatusWriter`."""

    def __init__(
        self, transport: Transport, limiter: WriteLimiter, clock: Clock, objects: ObjectsView, *, timeout_s: float
    ) -> None:
        self._objects = objects
        self._writer = ApiStatusWriter(transport, limiter, clock, self, timeout_s=timeout_s)
        self._sources: dict[ObjectKind, _Source] = {}
        self.reflectors: Mapping[ObjectKind, Reflector] = {}
        """Kind -> its reflector, which knows the served API version."""
        self._of_pending: dict[str, tuple[PendingPodsPlugin, DomainWorker]] = {}

    def serve(self, workers: Iterable[DomainWorker]) -> None:
        """Replaces the plugins by those of these domains.

        Raises PluginSetupError if two of them would write the same kind.
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
        """Kinds whose statuses are written."""
        return tuple(self._sources)

    def watching(self, kind: ObjectKind, handler: ReflectorHandler) -> ReflectorHandler:
        """Returns the handler of a kind's reflector, wrapped to observe changes if statuses of the kind are written."""
        if kind not in self._sources:
            return handler
        return self._writer.server_statuses.watching(kind, handler, self._changed)

    def _changed(self, key: ObjectKey) -> None:
        """Marks an added, updated or deleted object. A deleted one is also marked, because the status of others may depend on it."""
        if self._objects.get(*key) is None:
            self._writer.forget(key)
        self._writer.mark(key)

    @property
    def has_pending_pods_plugins(self) -> bool:
        """True if a plugin computes statuses from pending pods."""
        return bool(self._of_pending)

    def pending_changed(self, pod: Pod) -> None:
        """Notifies plugins that a pod became pending, changed while pending, or left the queue without a node."""
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

    # -- StatusOffer -----------------------------------------------------------------------------------------------

    def lease_of(self, kind: ObjectKind) -> LeaseHolder | None:
        """See `StatusOffer`."""
        worker = self._sources[kind].worker
        return worker.lease if worker.is_leading else None

    def path_of(self, kind: ObjectKind) -> str:
        """See `StatusOffer`."""
        reflector = self.reflectors.get(kind)
        return kind.definition.path if reflector is None else reflector.path

    def status_of(self, key: ObjectKey) -> ObjectStatus | None:
        """See `StatusOffer`. An exception of the plugin counts as its failure."""
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
        """Marks all objects whose statuses this domain writes. Called when this process has become the domain's leader."""
        for kind, source in self._sources.items():
            if source.worker is worker:
                self.mark_all(kind)

    def history_rewritten(self) -> None:
        """Marks all statuses for a new write, because a backup was restored and earlier writes may be lost."""
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
                if self._writer.has_dropped_marks or since_s >= RENEW_S:
                    self._writer.has_dropped_marks, since_s = False, 0.0
                    await self._renew()

    async def _renew(self) -> None:
        """Marks all objects; waits while the backlog is full."""
        for kind in self._sources:
            for key in [(kind, item.namespace, item.name) for item in self._objects.all(kind)]:
                while self._writer.backlog > DUE_MAX // 2:  # noqa: ASYNC110 - the writer drains it in the meantime
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
