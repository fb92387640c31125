"""Places that are kept for pods that do not exist yet: the replacements of pods that a repair evicts.

A place is a nomination whose pod is a stand-in. The stand-in has a uid of its own, and equals the pod that will be
evicted in all that filters read. Filters count it for every pod of equal or lower priority, requests, host ports and
all (`cycle/preemption/nominated_pods.py`). Nothing is assumed, so sums of rows stay what the API server's pods make
them. The audit finds nothing; a process that dies leaves nothing behind. Once handed over, the place is the
replacement's own nomination. It takes its node by the same path as a preemptor, filters and commit included. Owns which
places are kept; written by the shell, synchronous.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multisched.framework.moving import STAND_IN
from multisched.model.objects import Pod
from multisched.state.nominator import Nominator


class Reservation(msgspec.Struct):
    """One place."""

    stand_in: Pod
    node: str
    handed: Callable[[], None]
    known: frozenset[str] | None = None
    """uids that are no replacement; None: the place is not to be handed over yet."""
    taker: str = ""
    """The pod it was given to."""


class Reservations:
    """The places of all domains, by the uid of the pod that is to be replaced."""

    def __init__(self, nominator: Nominator) -> None:
        self._nominator = nominator
        self._by_uid: dict[str, Reservation] = {}

    def hold(self, uid: str, stand_in: Pod, node: str, handed: Callable[[], None]) -> None:
        """Keeps a place for the replacement of the pod of this uid; one that is kept for it already is given up. `handed`
        hears of the handing over."""
        self.release(uid)
        self._by_uid[uid] = Reservation(stand_in, node, handed)
        self._nominator.nominate(stand_in, node)

    def hand_over(self, uid: str, known: frozenset[str]) -> None:
        """From now on the place goes to the first pod that is offered and could stand in it."""
        place = self._by_uid.get(uid)
        if place is not None:
            place.known = known

    def offer(self, pod: Pod) -> bool:
        """A pod has come that waits for a node: True if it was given a place, which is its nomination now."""
        for place in self._by_uid.values():
            if place.known is None or place.taker or pod.uid in place.known or not _is_alike(pod, place.stand_in):
                continue
            place.taker = pod.uid
            self._nominator.remove(place.stand_in.uid)
            self._nominator.nominate(pod, place.node)
            place.handed()
            return True
        return False

    def is_kept(self, uid: str) -> bool:
        """True while the place is held for nobody in particular: a preemption may have taken it back."""
        place = self._by_uid.get(uid)
        return place is not None and not place.taker and self._nominator.node_of(place.stand_in.uid) == place.node

    def taker(self, uid: str) -> str:
        """The pod that got the place of this one's replacement; empty: none has."""
        place = self._by_uid.get(uid)
        return "" if place is None else place.taker

    def release(self, uid: str) -> bool:
        """Gives a place up; what a taker was nominated to stays its own. False: there was none."""
        place = self._by_uid.pop(uid, None)
        if place is not None:
            self._nominator.remove(place.stand_in.uid)
        return place is not None

    def __len__(self) -> int:
        return len(self._by_uid)


def stand_in_of(pod: Pod, node: str) -> Pod:
    """The pod as its replacement will be, as far as filters can tell, nominated to the node."""
    uid = f"{STAND_IN}{pod.uid}"
    return msgspec.structs.replace(
        pod, uid=uid, node="", nominated_node=node, phase="Pending", is_deleting=False, held=None, held_scoring=None
    )


def is_stand_in(pod: Pod) -> bool:
    return pod.uid.startswith(STAND_IN)


def _is_alike(pod: Pod, stand_in: Pod) -> bool:
    """Of the same controller, and no larger: a pod of another template would not fit what was kept. Whoever creates a pod
    may name any owner in it, so that the namespace counts too."""
    return (
        pod.namespace == stand_in.namespace
        and pod.owner is not None
        and stand_in.owner is not None
        and pod.owner.uid == stand_in.owner.uid
        and pod.spec.scheduler_name == stand_in.spec.scheduler_name
        and all(amount <= stand_in.requests.get(name, 0) for name, amount in pod.requests.items())
        and pod.spec.host_ports == stand_in.spec.host_ports
    )
