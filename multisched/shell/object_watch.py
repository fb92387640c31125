"""The watches of objects other than pods and nodes: one reflector and one handler per kind that an enabled plugin reads.

Only kinds that a plugin declares in `reads_objects`, or whose events it registers, are watched. If the API server returns 404
or 403 for a kind, the process can still lead: the error is logged once and the list is retried with backoff. If the kind is needed,
`unreadable` names it, which makes the process unready. An optional kind that is not installed has no objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from multisched.client.object_feed import ReflectorHandler
from multisched.client.reflector import Reflector
from multisched.framework.events import EventResource
from multisched.framework.ports import EventSink
from multisched.framework.registry import PluginSet
from multisched.framework.traits import traits_of
from multisched.model.object_kinds import ObjectKind
from multisched.shell.audit.audited_kinds import AuditedKind, AuditedNamedKind, CachedObject
from multisched.shell.ingest.objects import Notify, ObjectIngest, OnState
from multisched.state.object_store import ObjectStore

AUDITED_EVERY = 5
"""These kinds are compared with the API server in every n-th audit, because they have many objects, which change rarely."""


Watching = Callable[[ObjectKind, ReflectorHandler], ReflectorHandler]


class ReflectorFactory(Protocol):
    """A function that builds the reflector of one path for a handler."""

    def __call__(
        self,
        path: str,
        handler: ReflectorHandler,
        *,
        on_refused: Callable[[str], None] | None = None,
        is_optional: bool = False,
        or_paths: Sequence[str] = (),
    ) -> Reflector: ...


def watched_kinds(profiles: Iterable[PluginSet]) -> tuple[ObjectKind, ...]:
    """Returns the kinds that a plugin of these profiles reads or whose events it registers, in the order of ObjectKind."""
    wanted = set[EventResource]()
    for plugins in profiles:
        wanted.update(kind for built in plugins.built for kind in traits_of(built.plugin).reads_objects)
        wanted.update(
            one.event.resource for plugin in plugins.enqueue_extensions for one in plugin.events_to_register()
        )
    return tuple(kind for kind in ObjectKind if kind in wanted)


class ObjectWatch:
    """One reflector and one handler per kind that an enabled plugin reads."""

    def __init__(
        self,
        kinds: Iterable[ObjectKind],
        store: ObjectStore,
        build: ReflectorFactory,
        *,
        notify: Notify,
        events: EventSink,
        reporter: str,
        watching: Watching,
        on_state: OnState,
        reads_nothing: Callable[[], bool],
    ) -> None:
        """`watching`: wraps the handler of a kind with further observers. `on_state`, `reads_nothing`: see `ObjectIngest`."""
        self._store = store
        self.ingests = {k: ObjectIngest(k, store, notify, events, reporter) for k in kinds}
        for ingest in self.ingests.values():
            ingest.on_state, ingest.reads_nothing = on_state, reads_nothing
        self.reflectors: Mapping[ObjectKind, Reflector] = {
            kind: build(
                kind.definition.path,
                watching(kind, ingest),
                on_refused=ingest.refused,
                is_optional=kind.definition.is_optional,
                or_paths=kind.definition.paths[1:],
            )
            for kind, ingest in self.ingests.items()
        }

    async def wait_settled(self) -> None:
        """Waits until every kind has been listed for the first time, or its list was refused."""
        for reflector in self.reflectors.values():
            await reflector.wait_settled()

    def unreadable(self) -> str:
        """Returns the needed kinds that cannot be read, with reasons; empty if all can be read."""
        refused = [(kind, self._store.unreadable(kind)) for kind in self.ingests if kind.definition.is_needed]
        return "; ".join(f"{kind.value}: {why}" for kind, why in refused if why)

    def has(self, kind: ObjectKind) -> bool:
        """Reports whether an object of the kind is known. False for a kind that is not watched."""
        return bool(self._store.all(kind))

    def audited_kinds(self) -> Sequence[AuditedKind]:
        """Returns an `AuditedKind` for each kind of object."""
        return [AuditedObjects(self._store, ingest, self.reflectors[kind]) for kind, ingest in self.ingests.items()]


class AuditedObjects(AuditedNamedKind):
    """The `AuditedKind` of one kind in the object store. Objects are identified by namespace/name or name."""

    selector = ""
    every = AUDITED_EVERY

    def __init__(self, store: ObjectStore, ingest: ObjectIngest, reflector: Reflector) -> None:
        self.kind = ingest.kind.value
        self.reflector = reflector
        self._store = store
        self._ingest = ingest

    @property
    def path(self) -> str:
        return self.reflector.path

    def handles(self) -> Sequence[str]:
        """Returns the keys of all objects."""
        return [item.key for item in self._store.all(self._ingest.kind)]

    def cached(self, handle: str) -> CachedObject | None:
        namespace, _, name = handle.rpartition("/")
        item = self._store.get(self._ingest.kind, namespace, name)
        node_of = self._ingest.kind.definition.node_of
        return CachedObject(handle, item.uid, item.version, node_of(item)) if item is not None else None

    def drop(self, cached: CachedObject) -> None:
        self._ingest.delete(cached.key, None)

    def move(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        self._ingest.upsert(cached.key, raw)
