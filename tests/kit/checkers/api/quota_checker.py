"""Elastic quotas at the API server: the trees and pods of its store as the judge has them, and the reclaims of all processes (I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from multisched.cluster.api.server import ApiServer
from multisched.model.objects import Pod
from multisched.verify.demands import demand_of
from multisched.verify.quota_tree import QuotaTree
from multisched.verify.quotas import TREE_KIND
from multisched.verify.reclaims import ReclaimHistory
from tests.kit.checkers.api.followed_store import Document, FollowedStore
from tests.kit.checkers.linked_quotas import KIND as LINKED_KIND
from tests.kit.checkers.linked_quotas import LinkedQuotaJudge
from tests.kit.checkers.quota_rules import quota_claim, quota_excess, usage_of
from tests.kit.world.definitions import LINKED_QUOTA, QUOTA_TREE

REPLACED_S: Final = 1.5
"""A tree that is created within this after the deletion of the one in force replaces it."""
KINDS: Final = {QUOTA_TREE.storage: TREE_KIND, LINKED_QUOTA.storage: LINKED_KIND, "nodes": "Node", "pods": "Pod"}


class QuotaChecker:
    """Those of one run. Says nothing where there is no tree."""

    def __init__(
        self, server: ApiServer, now_s: Callable[[], float], complain: Callable[[str], None], *, is_on: bool
    ) -> None:
        """`is_on`: there may be quotas; else nothing is followed."""
        self.judge = LinkedQuotaJudge()
        self.trees: dict[str, Document] = {}
        """Every version of a tree that was ever written, by its resourceVersion."""
        self._complain = complain
        self._now_s = now_s
        self._deleted: tuple[float, QuotaTree] | None = None
        """When the tree in force was deleted, and what it was; None while there is one."""
        self._unbounded: list[str] = []
        """Binds since then that pass a max of it."""
        self._history = ReclaimHistory()
        self.claimants: dict[str, str] = {}
        """uid of a pod that some process has chosen to go -> the scheduler of the pod that it goes for."""
        self._store = FollowedStore(server, KINDS if is_on else {}, self._changed)

    def follow(self) -> None:
        """Takes in what has changed in the store."""
        self._store.follow()

    def _changed(self, kind: str, before: Document | None, after: Document | None) -> None:
        if kind in (TREE_KIND, LINKED_KIND) and after is not None:
            self.trees[str(after["metadata"]["resourceVersion"])] = after
        if kind == TREE_KIND and after is not None:
            self._tree_created()
        if kind == "Pod":
            self._pod_changed(before, after)
        elif before is None or after is None or before["spec"] != after["spec"] or _room(before) != _room(after):
            self._history.changed()
        in_force = self.judge.tree
        if kind != "Node" and before is not None and (after is None or _uid(before) != _uid(after)):
            self.judge.forget(kind, before)
        if kind == TREE_KIND and after is None and in_force is not None and self.judge.tree is None:
            self._deleted = self._now_s(), in_force
        if kind != "Node" and after is not None:
            self.judge.add(kind, after)

    def _tree_created(self) -> None:
        """A tree that replaces one that was deleted a moment ago: no limit was lifted meanwhile."""
        for sentence in self._unbounded if self.is_replaced else ():
            self._complain(f"I14: while the quotas were replaced, {sentence}")
        self._deleted = None
        self._unbounded.clear()

    @property
    def is_replaced(self) -> bool:
        """The tree in force was deleted a moment ago, and maybe another one replaces it."""
        return self._deleted is not None and self._now_s() - self._deleted[0] <= REPLACED_S

    def bound_without_tree(self, pod: Pod, others: Sequence[Pod]) -> None:
        """A pod was bound by a sender that knew of no tree, and of these pods."""
        excess = quota_excess(self._deleted[1], pod, others) if self._deleted is not None else ""
        if excess:
            self._unbounded.append(f"{pod.key} was bound, and with it {excess}")

    def _pod_changed(self, before: Document | None, after: Document | None) -> None:
        """What came, went or was resized is news where it counts for the tree; binds, and victims that go, are not."""
        if not self._concerns(after or before or {}):
            return
        if before is not None and after is not None and _uid(before) == _uid(after):
            if before["spec"]["containers"] != after["spec"]["containers"] or _phase(before) != _phase(after):
                self._history.changed()
            return
        if before is not None and _uid(before) not in self.claimants:
            self._history.changed()
        if after is not None:
            owner = _owner(after)
            self._history.arrived(_replaceable(owner, demand_of(after).most) if owner else "")

    def _concerns(self, pod: Document) -> bool:
        tree = self.judge.tree
        return tree is None or tree.leaf_of(str(pod["metadata"].get("namespace", ""))) is not None

    def reclaimed(self, claims: Sequence[Pod], victims: Sequence[Pod], staying: Iterable[Pod]) -> None:
        """A process begins to take room back for pods that start together: none of it undoes what another reclaim did.

        `victims`: without those that are leaving anyway. `staying`: pods on nodes as the process knows them, without the victims.
        """
        self.follow()
        tree, scheduler = self.judge.tree, claims[0].spec.scheduler_name
        for victim in victims:
            if victim.uid not in self.claimants:
                owner = victim.owner.uid if victim.owner is not None else ""
                self._history.evicted(_replaceable(owner, victim.requests))
            self.claimants[victim.uid] = scheduler
        leaf = tree.leaf_of(claims[0].namespace) if tree is not None else None
        if tree is None or leaf is None:
            return
        usage, claim = usage_of(tree, staying), quota_claim(claims)
        for theirs in {one.path: one for victim in victims if (one := tree.leaf_of(victim.namespace))}.values():
            shortfall = {name: -usage.over_min(theirs, name) for name in {*theirs.min, *theirs.max}}
            fault = self._history.reclaimed(leaf.path, theirs.path, claim, shortfall)
            if fault:
                self._complain(f"I14: {fault}")

    def status_faults(self) -> list[str]:
        """What the status of the tree in force says otherwise than its pods make; to be asked at rest."""
        self.follow()
        return [f"I14: {fault}" for fault in self.judge.status_faults()]


def _uid(document: Document) -> str:
    return str(document["metadata"]["uid"])


def _phase(pod: Document) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _room(document: Document) -> object:
    return document.get("status", {}).get("allocatable"), document["metadata"].get("labels")


def _replaceable(owner: str, requests: Mapping[str, int]) -> str:
    """What replaces a pod of this owner and size; of another size, as after a resize in place, it is news. Empty for nothing."""
    return f"{owner} {sorted((name, amount) for name, amount in requests.items() if amount)}" if owner else ""


def _owner(pod: Document) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")
