"""Checks elastic quotas at the API server: trees and pods as the judge reads them, and the reclaims of all processes (I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from multisched.cluster.api.server import ApiServer
from multisched.model.objects import Pod
from multisched.verify.demands import demand_of
from multisched.verify.quotas import TREE_KIND
from multisched.verify.reclaims import ReclaimHistory
from tests.kit.checkers.api.followed_store import Document, FollowedStore
from tests.kit.checkers.linked_quotas import KIND as LINKED_KIND
from tests.kit.checkers.linked_quotas import LinkedQuotaJudge
from tests.kit.checkers.quota_rules import quota_claim, usage_of
from tests.kit.world.definitions import LINKED_QUOTA, QUOTA_TREE

KINDS: Final = {QUOTA_TREE.storage: TREE_KIND, LINKED_QUOTA.storage: LINKED_KIND, "nodes": "Node", "pods": "Pod"}


class QuotaChecker:
    """The quotas of one run. Checks nothing if there is no tree."""

    def __init__(self, server: ApiServer, report_violation: Callable[[str], None], *, is_on: bool) -> None:
        """`is_on`: the run may have quotas; otherwise the store is not followed."""
        self.judge = LinkedQuotaJudge()
        self.trees: dict[str, Document] = {}
        """Every version of a tree that was written, by resourceVersion."""
        self._report_violation = report_violation
        self._history = ReclaimHistory()
        self.claimants: dict[str, str] = {}
        """uid of a victim -> scheduler of the pod that reclaims from it."""
        self._store = FollowedStore(server, KINDS if is_on else {}, self._changed)

    def follow(self) -> None:
        """Reads the changes of the store."""
        self._store.follow()

    def _changed(self, kind: str, before: Document | None, after: Document | None) -> None:
        if kind in (TREE_KIND, LINKED_KIND) and after is not None:
            self.trees[str(after["metadata"]["resourceVersion"])] = after
        if kind == "Pod":
            self._pod_changed(before, after)
        elif before is None or after is None or before["spec"] != after["spec"] or _room(before) != _room(after):
            self._history.changed()
        if kind != "Node" and before is not None and (after is None or _uid(before) != _uid(after)):
            self.judge.forget(kind, before)
        if kind != "Node" and after is not None:
            self.judge.add(kind, after)

    def _pod_changed(self, before: Document | None, after: Document | None) -> None:
        """Records pods that were created, deleted or resized, if they count for the tree; binds and deletions of victims are
        expected changes.
        """
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
        """Checks a reclaim for pods that start together: it must not undo another reclaim.

        `victims`: without pods that are leaving already. `staying`: pods on nodes as the process knows them, without the victims.
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
                self._report_violation(f"I14: {fault}")

    def status_faults(self) -> list[str]:
        """Returns differences between the status of the tree in force and its pods. Called when the run is quiescent."""
        self.follow()
        return [f"I14: {fault}" for fault in self.judge.status_faults()]


def _uid(document: Document) -> str:
    return str(document["metadata"]["uid"])


def _phase(pod: Document) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _room(document: Document) -> object:
    return document.get("status", {}).get("allocatable"), document["metadata"].get("labels")


def _replaceable(owner: str, requests: Mapping[str, int]) -> str:
    """Returns the key of pods that can replace a pod of this owner with these requests; empty without an owner. A pod of another
    size, for instance after a resize, is not a replacement.
    """
    return f"{owner} {sorted((name, amount) for name, amount in requests.items() if amount)}" if owner else ""


def _owner(pod: Document) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")
