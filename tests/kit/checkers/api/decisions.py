"""What each binding was decided on, and what its sender can have known of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import Any

from multisched.model.objects import Pod
from multisched.model.version import is_covered, version_of
from tests.kit.checkers.delivered_state import DecisionBasis, DeliveredState


class Decisions:
    """Those of all processes. Implements `bind_judge.SenderKnowledge`."""

    def __init__(self, bound: Mapping[str, str], did_not_know: Callable[[str, str], bool]) -> None:
        """`bound`: uid -> node of every binding that took effect. `did_not_know`: of two senders, for want of a lease."""
        self._bound = bound
        self._did_not_know = did_not_know
        self.delivered: dict[str, DeliveredState] = {}
        """Sender -> what it has observed."""
        self.external_uids: set[str] = set()
        """uids of pods that somebody else bound."""
        self._bases: dict[tuple[str, str], DecisionBasis] = {}
        """(uid, node) -> what the last binding of the pod to the node was decided on."""
        self._placed_by: dict[str, tuple[str, str]] = {}
        """uid -> (process, group of domains) that sent its latest binding."""
        self._decided = 0
        self._order: dict[str, int] = {}
        """uid -> the place of its latest decision among all."""

    def sent(self, sender: str, pod: Pod, node: str) -> None:
        """A binding leaves its process, which has observed what it binds."""
        self._bases[pod.uid, node] = self.delivered[sender].basis(sender, pod, node)

    def placed(self, sender: str, uid: str, group: str) -> None:
        self._placed_by[uid] = (sender, group)

    def placed_by_us(self) -> Set[str]:
        """uids of pods that only processes of ours have bound."""
        return self._placed_by.keys() - self.external_uids

    def on_restored(self, there: Mapping[str, Pod]) -> None:
        """A backup was restored, with these pods: nobody has observed what it has changed."""
        for delivered in self.delivered.values():
            delivered.on_restored(there)
        # Bindings on their way were decided on what was so before; what came back meanwhile none of them can have known.
        self._bases = {
            at: replace(basis, unknowable=basis.unknowable | self.delivered[basis.sender].unknowable)
            for at, basis in self._bases.items()
        }

    def decided(self, uid: str) -> None:
        """A process has decided to place a pod."""
        self._decided += 1
        self._order[uid] = self._decided

    def is_known(self, one: str, uid: str) -> bool:
        """Whoever placed `uid` has bound `one` too, or took the lease of its domains over from who had.

        Replicas that lead different domains at once hear of each other's binds by the watch.
        """
        first, last = self._placed_by.get(one), self._placed_by.get(uid)
        if first is None or last is None or one not in self._bound or one in self.external_uids:
            return False
        return any(ours == theirs for ours, theirs in zip(first, last, strict=True))

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        """Whoever sent the pod, or `uid`, had observed it as it is there when it decided on what it sent."""
        one, version = pod["metadata"]["uid"], version_of(pod["metadata"]["resourceVersion"])
        bases = [self.basis_of(of, self._bound.get(of, "")) for of in (one, uid)]
        versions = [basis.pods[one].version for basis in bases if basis is not None and one in basis.pods]
        return any(is_covered(version, by) for by in versions)

    def missed_pods(self, uid: str) -> Collection[str]:
        """uids of pods of which whoever placed `uid` has missed a word."""
        basis = self.basis_of(uid, self._bound[uid])
        return basis.unknowable if basis is not None else ()

    def basis_of(self, uid: str, node: str) -> DecisionBasis | None:
        """What the last binding of the pod to the node was decided on."""
        return self._bases.get((uid, node))

    def is_later(self, one: str, than: str) -> bool:
        """The pod `one` was decided on after the pod `than`."""
        return self._order.get(one, 0) > self._order.get(than, 0)

    def is_excused(self, pod: Pod, basis: DecisionBasis | None) -> bool:
        """Of this pod whoever sent what was decided on this ground cannot have known that it is there."""
        if basis is None:
            return False
        of = self._placed_by.get(pod.uid, ("", ""))[0]
        if self._did_not_know(of, basis.sender):
            return True
        if pod.uid in basis.unknowable:
            return True
        known = basis.pods.get(pod.uid)
        return pod.uid in self.external_uids and (known is None or known.node != pod.node)

    def knew_of(self, pod: Pod, uid: str, basis: DecisionBasis) -> bool:
        """Whoever decided on `uid` had observed this pod on its node then, or has placed it itself."""
        known = basis.pods.get(pod.uid)
        is_observed = known is not None and bool(known.node)
        return (is_observed or self.is_known(pod.uid, uid)) and not self.is_excused(pod, basis)

    def on_line_lost(self, sender: str, uid: str) -> None:
        """A watch has dropped a line about this pod without a word."""
        if sender in self.delivered:
            self.delivered[sender].unknowable.add(uid)
