"""Chooses the quota tree in force: the last valid one.

An invalid tree, or a second tree, has no effect: the previous one stays in force, and `trouble` has the reason. If many objects
form the tree, only their invalid changes are ignored (`many_quotas`). One of three APIs is read at a time: an ElasticQuotaTree
if there is one, else Koordinator's quotas, else those of scheduler-plugins. If a tree without `LIFT_ANNOTATION` is deleted, it
stays in force until other quotas exist. If many objects form the tree and all of them are deleted, there are no quotas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import TREE_NAMESPACE, ClusterObject, ElasticQuotaTree
from multisched.model.object_kinds import ObjectKind
from multisched.model.quota_tree import QuotaTree
from multisched.plugins.quota.many_quotas import ManyQuotas

logger = logging.getLogger(__name__)

SHOWN_MAX: Final = 3
"""Number of objects without effect that health lists; `quota tree` lists all."""
QUOTA_KINDS: Final = (ObjectKind.ELASTIC_QUOTA_TREE, ObjectKind.KOORDINATOR_QUOTA, ObjectKind.ELASTIC_QUOTA)
"""In order of precedence: the first kind that has objects is read."""


class InForce(msgspec.Struct, frozen=True):
    """The tree in force."""

    kind: ObjectKind
    tree: QuotaTree
    name: str
    """Key of the ElasticQuotaTree; empty if many objects form the tree."""
    uid: str = ""


class QuotaSource:
    """Reads the quotas from the object store, again whenever one of them has changed."""

    def __init__(self, objects: ObjectsView) -> None:
        self.objects = objects
        self._sequence = -1
        self._seen: tuple[int, ...] = ()
        self._many = {kind: ManyQuotas(kind) for kind in (ObjectKind.KOORDINATOR_QUOTA, ObjectKind.ELASTIC_QUOTA)}
        self.in_force: InForce | None = None
        """The chosen tree. It limits pods once the ledger has counted them (`QuotaLedger.in_force`)."""
        self.generation = 0
        """Increases whenever another tree is chosen."""
        self.trouble: dict[str, str] = {}
        """Key of an object without effect -> the reason. Logged when the object is new and when the reason changes."""
        self._logged: Mapping[str, str] = {}
        self._ended: str | None = None
        """uid of the deleted tree that other quotas have replaced: it is not in force again if these are deleted."""
        self.on_choice: Callable[[], None] = lambda: None
        """Called after changed objects were read."""

    @property
    def tree(self) -> QuotaTree | None:
        return None if self.in_force is None else self.in_force.tree

    @property
    def name(self) -> str:
        """Key of the ElasticQuotaTree in force; empty if there is none, or if many objects form the tree."""
        return "" if self.in_force is None else self.in_force.name

    def renew(self) -> None:
        """Reads the objects if they changed. Cheap if nothing changed."""
        if self.objects.sequence != self._sequence:
            self._sequence = self.objects.sequence
            versions = self.objects.versions(*QUOTA_KINDS)
            if versions != self._seen:
                self._seen = versions
                if not self._is_hidden():
                    self._choose()

    def _is_hidden(self) -> bool:
        """Reports whether the kind in force, or one of higher precedence, is unreadable; the tree in force then stays."""
        until = QUOTA_KINDS.index(self.in_force.kind) if self.in_force is not None else -1
        return any(self.objects.unreadable(kind) for kind in QUOTA_KINDS[: until + 1])

    def _choose(self) -> None:
        self._logged, self.trouble = self.trouble, {}
        found: InForce | None = None
        for kind in QUOTA_KINDS:
            ours = [one for one in self.objects.all(kind) if self._may_have_effect(kind, one)]
            if found is not None:
                for one in ours:
                    why = f"{found.kind.definition.name} of {found.kind.definition.api_version} is in force; one API is read at a time"
                    self._trouble(kind, one.key, why)
            elif ours:
                found = self._chosen_tree(ours) if kind is ObjectKind.ELASTIC_QUOTA_TREE else self._made_of(kind, ours)
        removed = self.objects.last_removed(ObjectKind.ELASTIC_QUOTA_TREE)
        if found is None:
            found = self._deleted_tree(removed)
        elif removed is not None:
            trees = self.objects.all(ObjectKind.ELASTIC_QUOTA_TREE)
            self._ended = "" if any(one.uid == removed.uid for one in trees) else removed.uid
        before, self.in_force = self.in_force, found
        self._log_lifted(before)
        if self.tree != (None if before is None else before.tree):
            self.generation += 1
        self.on_choice()

    def _deleted_tree(self, one: ClusterObject | None) -> InForce | None:
        """Returns the tree that was deleted last, unless it has `LIFT_ANNOTATION`, or other quotas have replaced it.

        So `kubectl replace --force`, which deletes and recreates the object, never lifts its limits.
        """
        kind = ObjectKind.ELASTIC_QUOTA_TREE
        if not isinstance(one, ElasticQuotaTree) or one.namespace != TREE_NAMESPACE or one.is_lifted:
            return None
        if one.uid == self._ended:
            return None
        if one.tree is None and self.in_force is not None and self.in_force.kind is kind:
            return self.in_force
        tree = one.tree or one.last_good
        return None if tree is None else InForce(kind, tree, one.key, one.uid)

    @property
    def is_deleted(self) -> bool:
        """Whether the object in force was deleted."""
        found = self.in_force
        if found is None or not found.name:
            return False
        namespace, _, name = found.name.partition("/")
        one = self.objects.get(found.kind, namespace, name)
        return one is None or one.uid != found.uid

    @property
    def is_lifted(self) -> bool:
        """Whether the tree in force has `LIFT_ANNOTATION`: its limits end with its deletion."""
        found = self.in_force
        if found is None or found.kind is not ObjectKind.ELASTIC_QUOTA_TREE or self.is_deleted:
            return False
        namespace, _, name = found.name.partition("/")
        one = self.objects.get(found.kind, namespace, name)
        return isinstance(one, ElasticQuotaTree) and one.is_lifted

    def _log_lifted(self, before: InForce | None) -> None:
        """Logs namespaces that no longer have a quota."""
        was = () if before is None else before.tree.leaf_of
        now = {} if self.tree is None else self.tree.leaf_of
        lifted = sorted(name for name in was if name not in now)
        if lifted:
            fields = {"count": len(lifted), "namespaces": lifted[:SHOWN_MAX]}
            logger.warning("namespaces no longer have a quota", extra=fields)

    def trouble_of(self, kind: ObjectKind, key: str) -> str:
        """Returns why the object has no effect; empty if it has."""
        return self.trouble.get(trouble_key(kind, key), "")

    def trouble_text(self) -> str:
        """Returns which objects have no effect, and why; empty if all have."""
        self.renew()
        lines = [f"{place} has no effect: {why}" for place, why in sorted(self.trouble.items())]
        if self.is_deleted:
            lines.insert(0, f"{self.name} was deleted, but stays in force until other quotas exist")
        return ", ".join(
            [*lines[:SHOWN_MAX], *([f"and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else [])]
        )

    def version_in_force(self, kind: ObjectKind, key: str) -> ClusterObject | None:
        """Returns the version in force of one of the many objects that form a tree; None if the object has no effect."""
        return self._many[kind].version_in_force(key)

    def _may_have_effect(self, kind: ObjectKind, one: ClusterObject) -> bool:
        if kind is not ObjectKind.ELASTIC_QUOTA_TREE or one.namespace == TREE_NAMESPACE:
            return True
        self._trouble(kind, one.key, f"only a tree in namespace {TREE_NAMESPACE} has effect; move it there")
        return False

    def _trouble(self, kind: ObjectKind, key: str, why: str) -> None:
        """Records why an object has no effect; logs a new reason."""
        place = trouble_key(kind, key)
        self.trouble[place] = why
        if self._logged.get(place) != why:
            logger.warning("quota has no effect", extra={"object": place, "error": why})

    def _chosen_tree(self, trees: Sequence[ClusterObject]) -> InForce | None:
        """Returns the last valid version of one of these trees; None if it has none.

        The chosen tree is the one in force, else the oldest with a valid version, else the oldest.
        """
        kind, before = ObjectKind.ELASTIC_QUOTA_TREE, self.in_force
        known = [one for one in trees if before is not None and before.kind is kind and before.uid == one.uid]
        chosen = known[0] if known else min(trees, key=self._rank)
        assert isinstance(chosen, ElasticQuotaTree)
        for other in trees:
            if other is not chosen:
                why = f"{chosen.key} is in force, and only one tree is allowed; delete one of them"
                self._trouble(kind, other.key, why)
        if chosen.tree is not None and _is_good(chosen):
            return InForce(kind, chosen.tree, chosen.key, chosen.uid)
        self._trouble(kind, chosen.key, f"not in force: {chosen.malformed}")
        last_good = self._last_good(chosen)
        if known or last_good is None:
            return before if known else None
        return InForce(kind, last_good, chosen.key, chosen.uid)

    def _last_good(self, one: ClusterObject) -> QuotaTree | None:
        """Returns the last valid version of an invalid tree: from its status, else from the kept object.

        The status lacks it if the process ended before it wrote the status.
        """
        kept = self.objects.last_removed(ObjectKind.ELASTIC_QUOTA_TREE)
        assert isinstance(one, ElasticQuotaTree)
        if one.last_good is None and isinstance(kept, ElasticQuotaTree) and kept.uid == one.uid:
            return kept.tree
        return one.last_good

    def _rank(self, one: ClusterObject) -> tuple[bool, str, str]:
        """Returns the sort key of trees: those that can be in force first, then the oldest."""
        assert isinstance(one, ElasticQuotaTree)
        return not _is_good(one) and self._last_good(one) is None, one.created, one.key

    def _made_of(self, kind: ObjectKind, quotas: Sequence[ClusterObject]) -> InForce | None:
        """Returns the tree that these objects form, without invalid changes; if they form none, the previous one."""
        found = self._many[kind].choose(quotas)
        for key, why in found.left_out.items():
            self._trouble(kind, key, f"its latest change is not in force: {why}")
        if found.tree is not None:
            return InForce(kind, found.tree, "")
        return self.in_force if self.in_force is not None and self.in_force.kind is kind else None


def _is_good(one: ClusterObject) -> bool:
    return isinstance(one, ElasticQuotaTree) and one.tree is not None and not one.malformed


def trouble_key(kind: ObjectKind, key: str) -> str:
    """Returns the key of an object in `trouble`: a tree's own key, otherwise kind and key."""
    is_tree = kind is ObjectKind.ELASTIC_QUOTA_TREE
    return key if is_tree else f"{kind.definition.plural}.{kind.definition.group} {key}"
