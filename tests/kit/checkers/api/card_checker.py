"""Checks nodes that share GPUs, at the API server and in their containers: what bindings assign, and what device plugins allocate.

A device plugin does not learn which pod it serves. Each binding is therefore checked against pods that the plugin could confuse
with it, and each allocation against the pod that the kubelet admitted (I1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from multisched.cluster.kubelet.device_plugins import Allocation
from multisched.cluster.kubelet.plugin_rules import HAMI_LOCK
from multisched.model.objects import Pod
from tests.kit.checkers.card_rules import Usage, fits, is_unserved, may_be_confused, mode_of
from tests.kit.world.gpu_nodes import HAMI, CardNode
from tests.kit.world.gpu_pods import CardDemand
from tests.kit.world.shared_gpus import SharedGpuActors
from tests.kit.world.store_view import StoreView

GANG: Final = "gang"
"""The label with which `gang_plans` marks members."""
INIT: str = "first"
"""The name of init containers of these pods. They use their cards before the other containers do, not at the same time."""


class CardChecker:
    """Checks the nodes and pods of `SharedGpuActors` until the store is restored from a backup."""

    def __init__(self, users: SharedGpuActors, objects: StoreView, report_violation: Callable[[str], None]) -> None:
        self._users, self._objects, self._report_violation = users, objects, report_violation
        self._seen = 0
        """Number of allocations that were checked."""
        self._rejected = Counter[str]()
        self._stolen = 0
        self._overfull: set[str] = set()
        self.is_on = True
        """False after a restore: containers run that the restored store does not have."""

    def bound(self, pod: Pod) -> None:
        """Checks a binding that just took effect."""
        if not self.is_on or not mode_of(pod) or pod.node not in self._users.nodes:
            return
        for other in self._pods_on(pod.node):
            if other.uid != pod.uid and is_unserved(other) and may_be_confused(pod, other):
                self._report_violation(
                    f"I1: {pod.key} was bound to {pod.node}, whose device plugin could take it for {other.key}"
                )
        lock = self._lock(pod.node)
        if self._users.nodes[pod.node].mode == HAMI and not lock.endswith(f",{pod.namespace},{pod.name}"):
            self._report_violation(
                f"I1: {pod.key} was bound to {pod.node} under the lock {lock[:80]!r}, which does not name it"
            )

    def look(self) -> None:
        """Checks what must hold at every moment."""
        if not self.is_on:
            return
        for name, node in self._users.nodes.items():
            excess = Usage(node, self._pods_on(name)).excess()
            if excess and name not in self._overfull:
                self._overfull.add(name)
                self._report_violation(f"I1: {excess}")
        allocations = self._users.kubelets.plugins.allocations
        for one in islice(allocations, self._seen, None):
            if one.uid != one.believed_uid:
                names = {pod.uid: pod.key for pod in self._users.pods()}
                pods = [names.get(uid, uid) for uid in (one.uid, one.believed_uid)]
                self._report_violation(f"I1: {one.node} admitted {pods[0]}, and its device plugin served {pods[1]}")
        if self._seen < len(allocations):
            self._seen = len(allocations)
            for fault in self._overfull_cards(allocations):
                self._report_violation(fault)
        rejected = self._users.kubelets.statistics().rejected
        for reason, count in rejected.items():
            if count > self._rejected[reason]:
                self._rejected[reason] = count
                self._report_violation(f"I1: kubelets have rejected {count} pods: {reason}")
        for fault in self._users.stolen[self._stolen :]:
            self._report_violation(f"I1: the lock of another scheduler was taken from it while it used it: {fault}")
        self._stolen = len(self._users.stolen)

    def faults(self) -> Iterator[str]:
        """Yields what must not remain when the run is quiescent (I3, I5)."""
        if not self.is_on:
            return
        for name in self._users.nodes:
            if self._lock(name):
                yield f"I5: the lock of {name} is left at rest: {self._lock(name)[:80]!r}"
            for pod in self._pods_on(name):
                if is_unserved(pod):
                    yield f"I5: the device plugin of {name} has not served {pod.key} at rest"
        yield from self._waiting_that_fit()
        yield from self._gangs_that_fit()

    def _waiting_that_fit(self) -> Iterator[str]:
        nodes = self._objects.nodes()
        for pod in self._users.pods():
            demand = self._users.demands.get(pod.name)
            if pod.node or pod.is_deleting or pod.is_terminal or demand is None or GANG in pod.labels:
                continue
            for name, known in self._users.nodes.items():
                if name in nodes and fits(demand, pod, known, nodes[name], self._pods_on(name)):
                    yield f"I3: {pod.key} is not bound, and {name} has cards for it"
                    break

    def _gangs_that_fit(self) -> Iterator[str]:
        """Yields gangs that wait although their members certainly fit: they are equal, and each can have a node of its own."""
        nodes = self._objects.nodes()
        for name, gang in self._users.gangs.items():
            members = [pod for pod in self._users.pods() if pod.labels.get(GANG) == name and not pod.is_terminal]
            waiting = [pod for pod in members if not (pod.node or pod.is_deleting)]
            bound = sum(bool(pod.node) and not pod.is_deleting for pod in members)
            lacking = max(gang.plan.minimum - bound, 1)
            if len(set(map(id, gang.demands))) > 1 or len(waiting) < lacking:
                continue
            free = [
                one
                for one, known in self._users.nodes.items()
                if one in nodes and fits(gang.demands[0], waiting[0], known, nodes[one], self._pods_on(one))
            ]
            if len(free) >= lacking:
                yield f"I3: {waiting[0].key} is not bound, and its gang lacks {lacking} members, which fit on {free}"

    def known(self, pod: Pod, node: str) -> tuple[CardDemand | None, CardNode | None]:
        """Returns the pod's demand and the node's real cards, if it is a pod for shared GPUs on such a node."""
        return self._users.demands.get(pod.name), self._users.nodes.get(node)

    def _pods_on(self, node: str) -> list[Pod]:
        return [pod for pod in self._objects.pods().values() if pod.node == node and not pod.is_terminal]

    def _lock(self, node: str) -> str:
        known = self._objects.nodes().get(node)
        return "" if known is None else known.annotations.get(HAMI_LOCK, "")

    def _overfull_cards(self, allocations: Iterable[Allocation]) -> Iterator[str]:
        """Yields cards of which containers together got more memory than the card has, at any moment."""
        use: dict[tuple[str, str], dict[str, _CardUse]] = defaultdict(dict)
        for one in allocations:
            for part in one.slices:
                got = use[one.node, part.card].setdefault(one.uid, _CardUse(one.began_s))
                got.add(part.memory, is_init=one.container == INIT)
                got.ended_s = one.ended_s
        for (node, card), pods in use.items():
            size = self._users.nodes[node].cards.get(card, {}).get("memory", 0)
            for moment_s in [got.began_s for got in pods.values()]:
                held = sum(got.memory for got in pods.values() if got.began_s <= moment_s < got.ended_s)
                if held > size and (sentence := f"{node} {card}") not in self._overfull:
                    self._overfull.add(sentence)
                    yield f"I1: containers got {held} of {size} of card {card} of {node} at {moment_s:.3f} s"


class _CardUse:
    """What the containers of one pod got of one card."""

    def __init__(self, began_s: float) -> None:
        self.began_s, self.ended_s = began_s, math.inf
        self._init = self._main = 0

    @property
    def memory(self) -> int:
        return max(self._init, self._main)

    def add(self, memory: int, *, is_init: bool) -> None:
        if is_init:
            self._init = max(self._init, memory)
        else:
            self._main += memory
