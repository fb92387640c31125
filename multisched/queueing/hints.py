"""Which events can help a refused pod: the registrations of all plugins, compiled.

Pure except for a cache and a counter. For a plugin without EnqueueExtensions, or an unknown one, any event that
wildcards match requeues the pod. A hint that raises, or returns an invalid result, counts as QUEUE: a wasted attempt is
cheaper than a forgotten pod. Source: kube-scheduler 1.36, scheduling_queue.go, isPodWorthRequeuing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from msgspec.structs import replace

from multisched.framework.dependency import Dependency, dependency_of
from multisched.framework.durations import Durations, growing
from multisched.framework.events import (
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    EventResource,
    Hint,
    QueueingHint,
    Resource,
)
from multisched.framework.points import EnqueueExtensions, Plugin
from multisched.framework.registry import implementing
from multisched.model.objects import Pod

Object = EventObject
OnError = Callable[[str, str, Exception], None]
"""Called for a plugin that raised, with its name, the extension point and the exception."""
Listener = QueueingHint | None
"""A hint, or None: the event always queues."""

_ALWAYS: tuple[Listener, ...] = (None,)
_OF_ROWS = (Dependency.NODE, Dependency.ROW)
"""Results of these plugins for a row depend only on that row: pods on rows that the domain may not use never help."""


class Requeue(IntEnum):
    """The effect of an event on a parked pod; of several effects, the one with the largest value applies."""

    SKIP = 0
    ONE = 1
    """Without backoff, but only one pod of the class."""
    AFTER_BACKOFF = 2
    AT_ONCE = 3
    """The plugin that returned Pending approves: no backoff."""


def is_wildcard(event: ClusterEvent) -> bool:
    """Reports whether the event requeues every parked pod, without hints."""
    return event.resource is Resource.WILDCARD


HINTS_PER_SAMPLE = 64
"""One hint in this many is timed: most take less time than reading the clock."""

HINT_BUCKETS_S = growing(0.00001, 1.5, 20)
"""The buckets of kube-scheduler: 10 us to 22 ms."""


class HintTable:
    """plugin and event → the hints to call."""

    def __init__(
        self, plugins: Iterable[Plugin], on_error: OnError, stopwatch: Callable[[], float] | None = None
    ) -> None:
        """`stopwatch`: seconds of a monotonic clock; None: hints are not timed."""
        self._registrations: dict[str, Sequence[EventRegistration]] = {}
        self._of_rows: frozenset[str] = frozenset()
        self._on_error = on_error
        self._kinds: dict[tuple[EventResource, Action], dict[str, tuple[Listener, ...]]] = {}
        self._of_interest: dict[tuple[EventResource, Action], bool] = {}
        self.register(plugins)
        self._stopwatch = stopwatch
        self.calls = 0
        self.durations: dict[tuple[str, str, str], Durations] = {}
        """(plugin, event, result) -> durations of the sampled hints."""

    def register(self, plugins: Iterable[Plugin]) -> None:
        """Replaces all plugins by these; counters and durations are kept."""
        plugins = tuple(plugins)
        self._registrations = {
            plugin.name: tuple(plugin.events_to_register()) for plugin in implementing(plugins, EnqueueExtensions)
        }
        self._of_rows = frozenset(p.name for p in plugins if dependency_of(p) in _OF_ROWS)
        self._kinds.clear()
        self._of_interest.clear()

    def is_of_interest(self, event: ClusterEvent) -> bool:
        """Reports whether some plugin has registered this kind of event, not counting plugins that react to any event."""
        kind = (event.resource, event.action)
        known = self._of_interest.get(kind)
        if known is None:
            known = is_wildcard(event) or any(self._registered(name, event) for name in self._registrations)
            self._of_interest[kind] = known
        return known

    def woken_by_anything(self, plugins: frozenset[str]) -> frozenset[str]:
        """Returns the plugins without registrations, for which any event queues."""
        return plugins - self._registrations.keys()

    def depend_on_row_alone(self, plugins: frozenset[str]) -> bool:
        """Reports whether the results of these plugins for a row depend on the pod's class and that row alone."""
        return plugins <= self._of_rows

    def listeners(self, event: ClusterEvent, plugins: Iterable[str]) -> list[tuple[str, tuple[Listener, ...]]]:
        """Returns those of `plugins` that registered this kind of event, with their hints, by name."""
        kind = self._kinds.setdefault((event.resource, event.action), {})
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
        """Returns the strongest result of all listeners; calls no more hints than needed."""
        strongest = Requeue.AT_ONCE if pending else Requeue.AFTER_BACKOFF
        answer = Requeue.SKIP
        for name, hints in listeners:
            for hint in hints:
                found = self._answer(event, name, hint, pod, old, new)
                if found is Hint.QUEUE:
                    answer = max(answer, Requeue.AT_ONCE if name in pending else Requeue.AFTER_BACKOFF)
                    break
                if found is Hint.QUEUE_ONE:
                    answer = max(answer, Requeue.ONE)
            if answer is strongest:
                break
        return answer

    def _answer(self, event: ClusterEvent, plugin: str, hint: Listener, pod: Pod, old: Object, new: Object) -> Hint:
        if hint is None:
            return Hint.QUEUE
        self.calls += 1
        if self._stopwatch is None or self.calls % HINTS_PER_SAMPLE:
            return self._asked(plugin, hint, pod, old, new)
        started_s = self._stopwatch()
        found = self._asked(plugin, hint, pod, old, new)
        key = (plugin, event.label, found.value)
        self.durations.setdefault(key, Durations(HINT_BUCKETS_S)).observe(self._stopwatch() - started_s)
        return found

    def _asked(self, plugin: str, hint: QueueingHint, pod: Pod, old: Object, new: Object) -> Hint:
        try:
            found = hint(pod, old, new)
        except Exception as error:  # noqa: BLE001  (a plugin's failure must not propagate; the pod is queued)
            self._on_error(plugin, "QueueingHint", error)
            return Hint.QUEUE
        return found if isinstance(found, Hint) else Hint.QUEUE

    def _registered(self, name: str, event: ClusterEvent) -> tuple[Listener, ...]:
        if name not in self._registrations:
            return _ALWAYS if event.is_in_wildcard else ()
        if event.resource is Resource.DISTANT_POD:
            if name in self._of_rows:
                return ()
            event = replace(event, resource=Resource.ASSIGNED_POD)
        return tuple(r.hint for r in self._registrations[name] if r.event.matches(event))
