"""Which events can help a refused pod: the registrations of all plugins, compiled.

Pure but for a cache and a counter. A plugin without EnqueueExtensions, or one nobody has heard of, is woken by any
event that wildcards stand for. A hint that raises, or answers nonsense, counts as QUEUE: a wasted attempt is cheaper than a forgotten pod.
Source: kube-scheduler 1.36, scheduling_queue.go, isPodWorthRequeuing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from msgspec.structs import replace

from multisched.framework.dependency import Dependency, dependency_of
from multisched.framework.durations import Durations, growing
from multisched.framework.events import ClusterEvent, EventObject, EventRegistration, Hint, QueueingHint, Resource
from multisched.framework.points import EnqueueExtensions, Plugin
from multisched.framework.registry import those
from multisched.model.objects import Pod

Object = EventObject
OnError = Callable[[str, str, Exception], None]
"""Hears of a plugin that raised: its name, the extension point and what it raised."""
Listener = QueueingHint | None
"""A hint, or None: the event always queues."""

_ALWAYS: tuple[Listener, ...] = (None,)
_OF_ROWS = (Dependency.NODE, Dependency.ROW)
"""What these say of a row depends on the row alone: pods on rows that the domain may not use never help."""


class Requeue(IntEnum):
    """What an event does to a parked pod; the larger wins."""

    SKIP = 0
    AFTER_BACKOFF = 1
    AT_ONCE = 2
    """The plugin that answered Pending says it is time: no backoff."""


def is_wildcard(event: ClusterEvent) -> bool:
    """True for events that wake whatever is parked, without hints."""
    return event.resource is Resource.WILDCARD


HINTS_PER_SAMPLE = 64
"""One hint in so many is timed: most take less than it takes to look at the clock."""

HINT_BUCKETS_S = growing(0.00001, 1.5, 20)
"""Kube-scheduler's: 10 us to 22 ms."""


class HintTable:
    """plugin and event → the hints to ask."""

    def __init__(
        self, plugins: Iterable[Plugin], on_error: OnError, stopwatch: Callable[[], float] | None = None
    ) -> None:
        """`stopwatch`: seconds of a monotonic clock; without one nothing is timed."""
        self._registrations: dict[str, Sequence[EventRegistration]] = {}
        self._of_rows: frozenset[str] = frozenset()
        self._on_error = on_error
        self._kinds: dict[tuple[str, int], dict[str, tuple[Listener, ...]]] = {}
        self._of_interest: dict[tuple[str, int], bool] = {}
        self.register(plugins)
        self._stopwatch = stopwatch
        self.calls = 0
        self.durations: dict[tuple[str, str, str], Durations] = {}
        """(plugin, event, answer) -> how long the sampled hints took."""

    def register(self, plugins: Iterable[Plugin]) -> None:
        """These plugins take the place of all before; what was counted and timed stays."""
        plugins = tuple(plugins)
        self._registrations = {
            plugin.name: tuple(plugin.events_to_register()) for plugin in those(plugins, EnqueueExtensions)
        }
        self._of_rows = frozenset(p.name for p in plugins if dependency_of(p) in _OF_ROWS)
        self._kinds.clear()
        self._of_interest.clear()

    def is_of_interest(self, event: ClusterEvent) -> bool:
        """True if some plugin has registered this kind of event. Plugins woken by any event are not counted."""
        if is_wildcard(event):
            return True
        kind = (event.resource.value, event.action.value)
        known = self._of_interest.get(kind)
        if known is None:
            known = any(self._registered(name, event) for name in self._registrations)
            self._of_interest[kind] = known
        return known

    def woken_by_anything(self, plugins: frozenset[str]) -> frozenset[str]:
        """Those that have registered nothing at all, so that any event queues."""
        return plugins - self._registrations.keys()

    def listeners(self, event: ClusterEvent, plugins: Iterable[str]) -> list[tuple[str, tuple[Listener, ...]]]:
        """Those of `plugins` that listen to this kind of event, with their hints, by name."""
        kind = self._kinds.setdefault((event.resource.value, event.action.value), {})
        found = []
        for name in sorted(plugins):
            hints = kind.get(name)
            if hints is None:
                hints = kind[name] = self._registered(name, event)
            if hints:
                found.append((name, hints))
        return found

    def decide(
        self,
        event: ClusterEvent,
        listeners: list[tuple[str, tuple[Listener, ...]]],
        pending: frozenset[str],
        pod: Pod,
        old: Object,
        new: Object,
    ) -> Requeue:
        """The strongest answer of all listeners; asks no more than needed."""
        strongest = Requeue.AT_ONCE if pending else Requeue.AFTER_BACKOFF
        answer = Requeue.SKIP
        for name, hints in listeners:
            if not any(self._queues(event, name, hint, pod, old, new) for hint in hints):
                continue
            answer = max(answer, Requeue.AT_ONCE if name in pending else Requeue.AFTER_BACKOFF)
            if answer is strongest:
                break
        return answer

    def _queues(self, event: ClusterEvent, plugin: str, hint: Listener, pod: Pod, old: Object, new: Object) -> bool:
        if hint is None:
            return True
        self.calls += 1
        if self._stopwatch is None or self.calls % HINTS_PER_SAMPLE:
            return self._asked(plugin, hint, pod, old, new)
        started_s = self._stopwatch()
        queues = self._asked(plugin, hint, pod, old, new)
        key = (plugin, event.label, (Hint.QUEUE if queues else Hint.SKIP).value)
        self.durations.setdefault(key, Durations(HINT_BUCKETS_S)).observe(self._stopwatch() - started_s)
        return queues

    def _asked(self, plugin: str, hint: QueueingHint, pod: Pod, old: Object, new: Object) -> bool:
        try:
            return hint(pod, old, new) is not Hint.SKIP
        except Exception as error:  # noqa: BLE001  (a plugin ends here; the pod must not be forgotten for it)
            self._on_error(plugin, "QueueingHint", error)
            return True

    def _registered(self, name: str, event: ClusterEvent) -> tuple[Listener, ...]:
        if name not in self._registrations:
            return _ALWAYS if event.is_in_wildcard else ()
        if event.resource is Resource.DISTANT_POD:
            if name in self._of_rows:
                return ()
            event = replace(event, resource=Resource.ASSIGNED_POD)
        return tuple(r.hint for r in self._registrations[name] if r.event.matches(event))
