"""The state on which each binding was decided, and what its sender can have known of other binds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import Any

from multisched.model.objects import Pod
from multisched.model.version import is_covered, version_of
from tests.kit.checkers.delivered_state import DecisionBasis, DeliveredState


class Decisions:
    """The decisions of all processes. Implements `bind_judge.SenderKnowledge`."""

    def __init__(self, bound: Mapping[str, str], did_not_know: Callable[[str, str], bool]) -> None:
        """`bound`: uid -> node of every binding that took effect. `did_not_know`: reports whether one of two senders could not know
        of the other because a lease was deleted.
        """
        self._bound = bound
        self._did_not_know = did_not_know
        self.delivered: dict[str, DeliveredState] = {}
        """Sender -> what it has observed."""
        self.external_uids: set[str] = set()
        """uids of pods that another client has bound."""
        self._bases: dict[tuple[str, str], DecisionBasis] = {}
        """(uid, node) -> state on which the last binding of the pod to the node was decided."""
        self._placed_by: dict[str, tuple[str, str]] = {}
        """uid -> (process, lease group) that sent its latest binding."""
        self._decided = 0
        self._order: dict[str, int] = {}
        """uid -> position of its latest decision in the order of all."""

    def sent(self, sender: str, pod: Pod, node: str) -> None:
        """Records a binding that is sent, with what its process has observed."""
        self._bases[pod.uid, node] = self.delivered[sender].basis(sender, pod, node)

    def placed(self, sender: str, uid: str, group: str) -> None:
        self._placed_by[uid] = (sender, group)

    def placed_by_us(self) -> Set[str]:
        """Returns uids of pods that only our processes have bound."""
        return self._placed_by.keys() - self.external_uids

    def on_restored(self, there: Mapping[str, Pod]) -> None:
        """Records that a backup with these pods was restored. No process has observed what it has changed."""
        for delivered in self.delivered.values():
            delivered.on_restored(there)
        # Bindings in flight were decided on the state before; none can have known what the backup brought back.
        self._bases = {
            at: replace(basis, unknowable=basis.unknowable | self.delivered[basis.sender].unknowable)
            for at, basis in self._bases.items()
        }

    def decided(self, uid: str) -> None:
        """Records a decision to place a pod."""
        self._decided += 1
        self._order[uid] = self._decided

    def is_known(self, one: str, uid: str) -> bool:
        """Reports whether the process that placed `uid` has also bound `one`, or leads the lease group that has bound it.

        Replicas that lead different domains at the same time learn of each other's binds only by watches.
        """
        first, last = self._placed_by.get(one), self._placed_by.get(uid)
        if first is None or last is None or one not in self._bound or one in self.external_uids:
            return False
        return any(ours == theirs for ours, theirs in zip(first, last, strict=True))

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        """Reports whether the sender of the pod, or of `uid`, had observed the pod in this version when it decided."""
        one, version = pod["metadata"]["uid"], version_of(pod["metadata"]["resourceVersion"])
        bases = [self.basis_of(of, self._bound.get(of, "")) for of in (one, uid)]
        versions = [basis.pods[one].version for basis in bases if basis is not None and one in basis.pods]
        return any(is_covered(version, by) for by in versions)

    def missed_pods(self, uid: str) -> Collection[str]:
        """Returns uids of pods about which the process that placed `uid` has missed an event."""
        basis = self.basis_of(uid, self._bound[uid])
        return basis.unknowable if basis is not None else ()

    def basis_of(self, uid: str, node: str) -> DecisionBasis | None:
        """Returns the state on which the last binding of the pod to the node was decided."""
        return self._bases.get((uid, node))

    def is_later(self, one: str, than: str) -> bool:
        """Reports whether the pod `one` was decided on after the pod `than`."""
        return self._order.get(one, 0) > self._order.get(than, 0)

    def is_excused(self, pod: Pod, basis: DecisionBasis | None) -> bool:
        """Reports whether the sender of a bind with this basis cannot know that the pod is on its node."""
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
        """Reports whether the process that decided on `uid` had observed this pod on its node, or has placed it itself."""
        known = basis.pods.get(pod.uid)
        is_observed = known is not None and bool(known.node)
        return (is_observed or self.is_known(pod.uid, uid)) and not self.is_excused(pod, basis)

    def on_line_lost(self, sender: str, uid: str) -> None:
        """Records that a watch of the sender has silently lost an event of this pod."""
        if sender in self.delivered:
            self.delivered[sender].unknowable.add(uid)
