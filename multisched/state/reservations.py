"""Reservations: places for pods that do not exist yet, the replacements of pods that a repair evicts.

A reservation is a nomination whose pod is a stand-in. The stand-in has its own uid, and equals the pod to be evicted in
everything that filters read. Filters count it for every pod of equal or lower priority, with requests and host ports
(`cycle/preemption/nominated_pods.py`). Nothing is assumed, so sums of rows match the API server's pods, the audit finds
no difference, and a process that dies leaves nothing behind. After the handover, the nomination is the replacement's
own: it is scheduled like a preemptor, with filters and commit. Owns the reservations; written by the shell,
synchronous.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multisched.framework.moving import STAND_IN
from multisched.model.objects import Pod
from multisched.state.nominator import Nominator


class Reservation(msgspec.Struct):
    """One reserved place."""

    stand_in: Pod
    node: str
    on_assigned: Callable[[], None]
    known: frozenset[str] | None = None
    """uids of pods that are no replacement; None: the place is not assigned yet."""
    replacement: str = ""
    """uid of the pod that got the place."""


class Reservations:
    """The reservations of all domains, by the uid of the pod to be replaced."""

    def __init__(self, nominator: Nominator) -> None:
        self._nominator = nominator
        self._by_uid: dict[str, Reservation] = {}

    def reserve(self, uid: str, stand_in: Pod, node: str, on_assigned: Callable[[], None]) -> None:
        """Reserves a place for the replacement of the pod of this uid, in place of an earlier reservation for it.
        `on_assigned` is called when the place is assigned.
        """
        self.release(uid)
        self._by_uid[uid] = Reservation(stand_in, node, on_assigned)
        self._nominator.nominate(stand_in, node)

    def assign_to_replacement(self, uid: str, known: frozenset[str]) -> None:
        """Assigns the place, from now on, to the first offered pod that matches the stand-in."""
        place = self._by_uid.get(uid)
        if place is not None:
            place.known = known

    def offer(self, pod: Pod) -> bool:
        """Offers a new pending pod; returns True if it was nominated to a reserved place."""
        for place in self._by_uid.values():
            if place.known is None or place.replacement or pod.uid in place.known or not _is_alike(pod, place.stand_in):
                continue
            place.replacement = pod.uid
            self._nominator.remove(place.stand_in.uid)
            self._nominator.nominate(pod, place.node)
            place.on_assigned()
            return True
        return False

    def is_reserved(self, uid: str) -> bool:
        """Reports whether the place is reserved and not assigned; a preemption may have taken it."""
        place = self._by_uid.get(uid)
        return place is not None and not place.replacement and self._nominator.node_of(place.stand_in.uid) == place.node

    def replacement(self, uid: str) -> str:
        """Returns the pod that got the place of this pod's replacement; empty: none has."""
        place = self._by_uid.get(uid)
        return "" if place is None else place.replacement

    def release(self, uid: str) -> bool:
        """Releases a reservation; a nomination that was assigned to a replacement remains. Returns False if there was none."""
        place = self._by_uid.pop(uid, None)
        if place is not None:
            self._nominator.remove(place.stand_in.uid)
        return place is not None

    def __len__(self) -> int:
        return len(self._by_uid)


def stand_in_of(pod: Pod, node: str) -> Pod:
    """Returns the stand-in: the pod as filters will see its replacement, nominated to the node."""
    uid = f"{STAND_IN}{pod.uid}"
    return msgspec.structs.replace(
        pod, uid=uid, node="", nominated_node=node, phase="Pending", is_deleting=False, held=None, held_scoring=None
    )


def is_stand_in(pod: Pod) -> bool:
    return pod.uid.startswith(STAND_IN)


def _is_alike(pod: Pod, stand_in: Pod) -> bool:
    """Reports whether the pod has the same controller and is no larger: a pod of another template may not fit the place.

    The namespace is compared too, because a pod's creator may name any owner in it.
    """
    return (
        pod.namespace == stand_in.namespace
        and pod.owner is not None
        and stand_in.owner is not None
        and pod.owner.uid == stand_in.owner.uid
        and pod.spec.scheduler_name == stand_in.spec.scheduler_name
        and all(amount <= stand_in.requests.get(name, 0) for name, amount in pod.requests.items())
        and pod.spec.host_ports == stand_in.spec.host_ports
    )
