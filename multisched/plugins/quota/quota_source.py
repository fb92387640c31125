"""Which tree of quotas is in force: the last good one, as long as somebody wants one.

Owns nothing of the cluster. A tree with problems, or a second one, changes nothing: what was in force stays, and `trouble` says why.
When the last tree is deleted no quota is left.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import ElasticQuotaTree
from multisched.model.object_kinds import ObjectKind
from multisched.model.quota_tree import QuotaTree

TREE_NAMESPACE: Final = "kube-system"
"""Trees elsewhere have no effect, as in ACK."""


class QuotaSource:
    """Reads the trees of the object store, anew when one of them has changed."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._seen = -1
        self._in_force: ElasticQuotaTree | None = None
        self.generation = 0
        """Rises whenever another tree is in force."""
        self.trouble: dict[str, str] = {}
        """Key of a tree that has no effect -> why."""

    @property
    def tree(self) -> QuotaTree | None:
        return None if self._in_force is None else self._in_force.tree

    @property
    def name(self) -> str:
        """Key of the object in force; empty for none."""
        return "" if self._in_force is None else self._in_force.key

    def renew(self) -> int:
        """Looks at the objects if they changed; the generation that is in force now. Cheap when nothing did."""
        version = self._objects.version(ObjectKind.ELASTIC_QUOTA_TREE)
        if version != self._seen:
            self._seen = version
            if not self._objects.unreadable(ObjectKind.ELASTIC_QUOTA_TREE):  # what cannot be read has not changed
                self._choose()
        return self.generation

    def _choose(self) -> None:
        self.trouble = {}
        found: list[ElasticQuotaTree] = []
        for one in self._objects.all(ObjectKind.ELASTIC_QUOTA_TREE):
            assert isinstance(one, ElasticQuotaTree)
            if one.namespace == TREE_NAMESPACE:
                found.append(one)
            else:
                self.trouble[one.key] = f"only a tree in namespace {TREE_NAMESPACE} has effect; move it there"
        before = self._in_force
        known = next((one for one in found if before is not None and one.uid == before.uid), None)
        chosen = known if known is not None else min(found, key=lambda one: one.key, default=None)
        for other in found:
            if chosen is not None and other is not chosen:
                self.trouble[other.key] = (
                    f"{chosen.key} is in force, and one tree is all there may be; delete one of them"
                )
        if chosen is not None and (chosen.malformed or chosen.tree is None):
            why = chosen.malformed or "; ".join(map(str, chosen.problems))
            self.trouble[chosen.key] = f"not in force: {why}"
            if before is None:
                return
            if known is None:
                self._set(None)  # the one in force is gone, and this one never was
            return
        self._set(chosen)

    def _set(self, chosen: ElasticQuotaTree | None) -> None:
        before, self._in_force = self._in_force, chosen
        if self.tree != (None if before is None else before.tree):
            self.generation += 1
