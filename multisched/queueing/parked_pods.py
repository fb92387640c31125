"""Pods that wait for an event: unschedulable and gated ones, indexed so that an event asks as few hints as possible.

Owns the index and the leftover deadlines. Two levels: who refused the pod (an event nobody of them listens to costs one
look per set of plugins, whatever the number of pods), then the pod's class. Pods of one class (equal spec, labels,
annotations, namespace, owner, gates and nominated node) share one answer per event, so a hint must not read the waiting
pod's name, uid, version or creation time. For the pod's own update (TARGET_POD) it is asked about that pod alone and may.
Called by `PodQueue` alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from multisched.framework.events import ClusterEvent
from multisched.model.objects import Pod
from multisched.queueing.entry import Entry
from multisched.queueing.hints import HintTable, Object, Requeue, is_wildcard
from multisched.queueing.transitions import Place, QueueInvariantError

Refusers = tuple[Place, frozenset[str], frozenset[str]]
"""(place, rejector plugins, pending plugins)"""


def class_of(pod: Pod) -> Hashable:
    """Equal for pods that get the same answers. Labels and annotations by identity: `model.decode` interns them."""
    return (
        pod.spec,
        id(pod.labels) if pod.labels else 0,
        id(pod.annotations) if pod.annotations else 0,
        pod.namespace,
        pod.owner,
        pod.gates,
        pod.nominated_node,
        pod.malformed,
    )


class ParkedPods:
    """Entries that only an event or the leftover flush moves."""

    def __init__(self) -> None:
        self._groups: dict[Refusers, dict[Hashable, dict[str, Entry]]] = {}
        self._keys: dict[str, tuple[Refusers, Hashable]] = {}
        self._deadlines: OrderedDict[str, float] = OrderedDict()
        self._counts = {Place.GATED: 0, Place.UNSCHEDULABLE: 0}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, uid: object) -> bool:
        return uid in self._keys

    def count(self, place: Place) -> int:
        return self._counts[place]

    def count_by_plugin(self) -> dict[str, int]:
        """Pods each plugin holds here."""
        counts: dict[str, int] = {}
        for (_, rejectors, pending), classes in self._groups.items():
            size = sum(map(len, classes.values()))
            for plugin in sorted(rejectors | pending):
                counts[plugin] = counts.get(plugin, 0) + size
        return counts

    def held_by(self, plugin: str) -> int:
        """Pods this plugin holds here."""
        groups = self._groups.items()
        return sum(len(m) for (_, *by), classes in groups if any(plugin in b for b in by) for m in classes.values())

    def deadline_s(self, uid: str) -> float:
        return self._deadlines[uid]

    def next_deadline_s(self) -> float | None:
        """All pods wait equally long, so the first that came is the first that is due."""
        return next(iter(self._deadlines.values()), None)

    def add(self, entry: Entry, deadline_s: float) -> None:
        """Parks the entry at its place; an entry already here is indexed anew with a new deadline."""
        self._unindex(entry.uid)
        self._index(entry)
        self._deadlines[entry.uid] = deadline_s
        self._deadlines.move_to_end(entry.uid)

    def reindex(self, entry: Entry) -> None:
        """The entry's pod was replaced; its deadline stays."""
        self._unindex(entry.uid)
        self._index(entry)

    def discard(self, uid: str) -> None:
        self._unindex(uid)
        del self._deadlines[uid]

    def due(self, now_s: float) -> list[str]:
        """uids whose deadline has come, first come first."""
        found = []
        for uid, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            found.append(uid)
        return found

    def affected(self, event: ClusterEvent, old: Object, new: Object, table: HintTable) -> list[tuple[Entry, Requeue]]:
        """Entries this event may help, and how each is to be requeued."""
        found: list[tuple[Entry, Requeue]] = []
        for (_, rejectors, pending), classes in self._groups.items():
            if is_wildcard(event):
                found += [(e, Requeue.AFTER_BACKOFF) for members in classes.values() for e in members.values()]
                continue
            listeners = table.listeners(event, rejectors | pending)
            if not listeners:
                continue
            for members in classes.values():
                asked = next(iter(members.values())).pod
                how = table.decide(event, listeners, pending, asked, old, new)
                if how is not Requeue.SKIP:
                    found += [(e, how) for e in members.values()]
        return found

    def entries(self) -> Iterator[Entry]:
        for classes in self._groups.values():
            for members in classes.values():
                yield from members.values()

    def validate(self) -> None:
        """Raises QueueInvariantError when the index does not hold each parked entry once, where it belongs."""
        seen = 0
        for refusers, classes in self._groups.items():
            for key, members in classes.items():
                if not members:
                    raise QueueInvariantError(f"an empty class is kept under {refusers}")
                for uid, entry in members.items():
                    seen += 1
                    if self._keys.get(uid) != (refusers, key) or (entry.place, *entry.waits_for) != refusers:
                        raise QueueInvariantError(f"pod {uid} is indexed under {refusers} [{'; '.join(entry.tell())}]")
        if not seen == len(self._keys) == len(self._deadlines) == sum(self._counts.values()):
            raise QueueInvariantError(f"{seen} pods parked, {len(self._keys)} keys, {len(self._deadlines)} deadlines")

    def _index(self, entry: Entry) -> None:
        refusers, key = (entry.place, *entry.waits_for), class_of(entry.pod)
        self._groups.setdefault(refusers, {}).setdefault(key, {})[entry.uid] = entry
        self._keys[entry.uid] = (refusers, key)
        self._counts[entry.place] += 1

    def _unindex(self, uid: str) -> None:
        known = self._keys.pop(uid, None)
        if known is None:
            return
        refusers, key = known
        classes = self._groups[refusers]
        members = classes[key]
        del members[uid]
        if not members:
            del classes[key]
        if not classes:
            del self._groups[refusers]
        self._counts[refusers[0]] -= 1
