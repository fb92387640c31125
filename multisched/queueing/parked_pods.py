"""Parked pods: unschedulable and gated ones, indexed so that an event calls as few hints as possible.

Owns the index and the leftover deadlines. The index has two levels: the plugins that refused the pod, then the pod's
class. An event that none of these plugins registered costs one look-up per set of plugins, whatever the number of pods.
Pods of one class have equal spec, labels, annotations, namespace, owner, gates and nominated node. They share one
answer per event, so a hint must not read the pod's name, uid, version or creation time. For the pod's own update
(TARGET_POD) the hint is called for that pod alone and may read them.

Ten thousand refused pods of one namespace with fifty terms each would cost every event a second of hints. So if a
namespace's classes that one set of plugins refused cost more than HINT_COST_MAX, their hints are not called. Instead these
pods are requeued after such an event as if the event helped them: in turns, as many at a time as `overdue` returns. Used
by `PodQueue` only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

from multisched.framework.events import ClusterEvent
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import ClassKey, Entry, ParkedClass, Refusers
from multisched.queueing.hints import HintTable, Object, Requeue, is_wildcard
from multisched.queueing.representatives import Representatives
from multisched.queueing.transitions import QueueInvariantError, QueueState

HINT_COST_MAX: Final = 4_096
"""Limit of the cost of hints for one namespace and event. A class costs 1, plus 1 for each of its terms."""
OVERDUE_PER_FLUSH: Final = 128
"""Classes without hints that are requeued at a time."""

_Classes = dict[ClassKey, OrderedDict[str, Entry]]


def class_of(pod: Pod) -> ClassKey:
    """Returns a key that is equal for pods that get the same hints. Labels and annotations by identity: `model.decode` interns them."""
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


def hint_cost(spec: PodSpec) -> int:
    """Returns 1, plus 1 for each term that a hint may evaluate."""
    cost = 1 + len(spec.spread)
    if spec.pod_affinity is not None:
        cost += len(spec.pod_affinity.required) + len(spec.pod_affinity.anti_required)
    if spec.affinity.required is not None:
        cost += len(spec.affinity.required.terms)
    return cost


class ParkedPods:
    """Entries that only an event or the leftover flush moves."""

    def __init__(self) -> None:
        self.representatives = Representatives()
        self._groups: dict[Refusers, dict[str, _Classes]] = {}
        """Plugins that refused -> namespace -> classes."""
        self.classes_by_uid: dict[str, ParkedClass] = {}
        """uid of each parked entry -> its class. Read by `PodQueue`."""
        self._costs: dict[tuple[Refusers, str], int] = {}
        """The cost of the hints about a namespace's classes."""
        self._overdue: dict[tuple[Refusers, str], int] = {}
        """(refusers, namespace) with skipped hints -> number of classes that must still be requeued because of that."""
        self._deadlines: OrderedDict[str, float] = OrderedDict()
        self._counts = {QueueState.GATED: 0, QueueState.UNSCHEDULABLE: 0}

    def __len__(self) -> int:
        return len(self.classes_by_uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self.classes_by_uid

    def count(self, state: QueueState) -> int:
        return self._counts[state]

    def count_by_plugin(self) -> dict[str, int]:
        """Returns the number of pods that each plugin parks here."""
        counts: dict[str, int] = {}
        for (_, rejectors, pending), namespaces in self._groups.items():
            size = sum(len(members) for classes in namespaces.values() for members in classes.values())
            for plugin in sorted(rejectors | pending):
                counts[plugin] = counts.get(plugin, 0) + size
        return counts

    def held_by(self, plugin: str) -> int:
        """Returns the number of pods that this plugin parks here."""
        held = [spaces for (_, *by), spaces in self._groups.items() if any(plugin in names for names in by)]
        return sum(len(members) for spaces in held for classes in spaces.values() for members in classes.values())

    def deadline_s(self, uid: str) -> float:
        return self._deadlines[uid]

    def next_deadline_s(self) -> float | None:
        """Returns the first deadline. All pods wait equally long, so the first one parked is due first."""
        return next(iter(self._deadlines.values()), None)

    def add(self, entry: Entry, deadline_s: float) -> None:
        """Parks the entry in its state; an entry that is already here is indexed again with a new deadline."""
        self._unindex(entry.uid)
        self._index(entry)
        self._deadlines[entry.uid] = deadline_s
        self._deadlines.move_to_end(entry.uid)

    def delay(self, seconds: float) -> None:
        """Adds this time, which may be negative, to all deadlines, so that all entries still wait equally long."""
        for uid in self._deadlines:
            self._deadlines[uid] += seconds

    def reindex(self, entry: Entry) -> None:
        """Indexes an entry again after its pod was replaced; keeps its deadline."""
        self._unindex(entry.uid)
        self._index(entry)

    def discard(self, uid: str) -> None:
        self._unindex(uid)
        del self._deadlines[uid]

    def due(self, now_s: float) -> list[str]:
        """Returns the uids whose deadline has passed, earliest first."""
        found = []
        for uid, deadline_s in self._deadlines.items():
            if deadline_s > now_s:
                break
            found.append(uid)
        return found

    def members(self, where: ParkedClass) -> Mapping[str, Entry]:
        """Returns the parked entries of a class, those first that were parked first. Live: copy to move more than one."""
        return self._groups.get(where.refusers, {}).get(where.namespace, {}).get(where.key, {})

    def affected(
        self,
        event: ClusterEvent,
        old: Object,
        new: Object,
        table: HintTable,
        apart: Collection[str] = (),
        freed: str | None = None,
        now_s: float = 0.0,
    ) -> list[tuple[Entry, Requeue]]:
        """Returns the entries this event may help, and how each must be requeued.

        `apart`: uids of entries that it does not help. `freed`: the node that a pod has left; of classes that it may help,
        representatives are returned. None: all pods are.
        """
        found: list[tuple[Entry, Requeue]] = []
        for refusers, namespaces in self._groups.items():
            _, rejectors, pending = refusers
            if is_wildcard(event):
                found += [
                    (e, Requeue.AFTER_BACKOFF) for c in namespaces.values() for m in c.values() for e in m.values()
                ]
                continue
            listeners = table.listeners(event, rejectors | pending)
            if not listeners:
                continue
            represented_on = None if pending or not table.depend_on_row_alone(rejectors) else freed
            for namespace, classes in namespaces.items():
                if self._costs[refusers, namespace] > HINT_COST_MAX:
                    self._overdue[refusers, namespace] = len(classes)
                    continue
                for key, members in classes.items():
                    first = next(iter(members.values()))
                    how = table.decide(event, listeners, pending, first.pod, old, new)
                    if how is Requeue.SKIP:
                        continue
                    if how is Requeue.ONE:
                        one = next((one for uid, one in members.items() if uid not in apart), first)
                        found.append((one, Requeue.AT_ONCE))
                    elif represented_on is not None and len(members) > 1:
                        where = ParkedClass(refusers, namespace, key)
                        chosen = self.representatives.choose(where, members, represented_on, apart, now_s)
                        found += [(one, how) for one in chosen]
                    else:
                        found += [(one, how) for one in members.values()]
        return [(one, how) for one, how in found if one.uid not in apart] if apart else found

    @property
    def has_overdue(self) -> bool:
        return bool(self._overdue)

    def overdue(self) -> list[Entry]:
        """Returns some of the entries that must be requeued because their hints were skipped, in turns."""
        found: list[Entry] = []
        for at, left in list(self._overdue.items()):
            refusers, namespace = at
            classes = self._groups.get(refusers, {}).get(namespace, {})
            count = min(OVERDUE_PER_FLUSH, left, len(classes))
            for key in list(islice(classes, count)):
                members = classes[key] = classes.pop(key)  # to the end
                found += members.values()
            if left > count and count:
                self._overdue[at] = left - count
            else:
                del self._overdue[at]
        return found

    def validate(self) -> None:
        """Raises QueueInvariantError unless the index holds each parked entry once, at the right position."""
        seen = 0
        for refusers, namespaces in self._groups.items():
            for namespace, classes in namespaces.items():
                if not classes or not all(classes.values()):
                    raise QueueInvariantError(f"an empty class is kept under {refusers} of {namespace}")
                for key, members in classes.items():
                    for uid, entry in members.items():
                        seen += 1
                        at = (entry.state, *entry.waits_for)
                        if self.classes_by_uid.get(uid) != (refusers, namespace, key) or at != refusers:
                            said = "; ".join(entry.history())
                            raise QueueInvariantError(f"pod {uid} is indexed under {refusers} [{said}]")
        if not seen == len(self.classes_by_uid) == len(self._deadlines) == sum(self._counts.values()):
            raise QueueInvariantError(
                f"{seen} pods parked, {len(self.classes_by_uid)} keys, {len(self._deadlines)} deadlines"
            )

    def _index(self, entry: Entry) -> None:
        refusers, key, namespace = (entry.state, *entry.waits_for), class_of(entry.pod), entry.namespace
        classes = self._groups.setdefault(refusers, {}).setdefault(namespace, {})
        members = classes.get(key)
        if members is None:
            members = classes[key] = OrderedDict()
            self._costs[refusers, namespace] = self._costs.get((refusers, namespace), 0) + hint_cost(entry.pod.spec)
        members[entry.uid] = entry
        where = self.classes_by_uid[entry.uid] = ParkedClass(refusers, namespace, key)
        if entry.represents == where:  # refused for all: it keeps its turn
            members.move_to_end(entry.uid, last=False)
            entry.represents = None
        self.representatives.pass_on(entry)  # it has changed since
        self._counts[entry.state] += 1

    def _unindex(self, uid: str) -> None:
        known = self.classes_by_uid.pop(uid, None)
        if known is None:
            return
        refusers, namespace, key = known
        namespaces = self._groups[refusers]
        classes = namespaces[namespace]
        members = classes[key]
        del members[uid]
        if not members:
            del classes[key]
            self._costs[refusers, namespace] -= hint_cost(key[0])  # the entry's pod may have been replaced
        if not classes:
            del namespaces[namespace], self._costs[refusers, namespace]
        if not namespaces:
            del self._groups[refusers]
        self._counts[refusers[0]] -= 1
