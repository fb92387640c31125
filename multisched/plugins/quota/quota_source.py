"""Which tree of quotas is in force: the last good one, as long as somebody wants one.

Owns nothing of the cluster. A tree with problems, or a second one, changes nothing: what was in force stays, and `trouble` says why.
Where many objects make the tree, only the changes with mistakes are left out (`many_quotas`).
Of three APIs one is read at a time: an ElasticQuotaTree before Koordinator's quotas, and these before those of scheduler-plugins. When
a tree is deleted without consent (`LIFT_ANNOTATION`), it stays in force until other quotas are. When the last object of many is
deleted, no quota is left.
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
"""Objects without effect that health names; `quota tree` names all."""
QUOTA_KINDS: Final = (ObjectKind.ELASTIC_QUOTA_TREE, ObjectKind.KOORDINATOR_QUOTA, ObjectKind.ELASTIC_QUOTA)
"""The first of which there are objects is read."""


class InForce(msgspec.Struct, frozen=True):
    """What holds now."""

    kind: ObjectKind
    tree: QuotaTree
    name: str
    """Key of an ElasticQuotaTree; empty where many objects make the tree."""
    uid: str = ""


class QuotaSource:
    """Reads the quotas of the object store, anew when one of them has changed."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._sequence = -1
        self._seen: tuple[int, ...] = ()
        self._many = {kind: ManyQuotas(kind) for kind in (ObjectKind.KOORDINATOR_QUOTA, ObjectKind.ELASTIC_QUOTA)}
        self.in_force: InForce | None = None
        self.generation = 0
        """Rises whenever another tree is in force."""
        self.trouble: dict[str, str] = {}
        """Key of an object that has no effect -> why. Logged when it begins, and when the reason is another one."""
        self._logged: Mapping[str, str] = {}
        self.on_choice: Callable[[], None] = lambda: None
        """Called after each look at objects that have changed."""

    @property
    def tree(self) -> QuotaTree | None:
        return None if self.in_force is None else self.in_force.tree

    @property
    def name(self) -> str:
        """Key of the ElasticQuotaTree in force; empty for none, and where many objects make the tree."""
        return "" if self.in_force is None else self.in_force.name

    def renew(self) -> int:
        """Looks at the objects if they changed; the generation that is in force now. Cheap when nothing did."""
        if self._objects.sequence != self._sequence:
            self._sequence = self._objects.sequence
            versions = self._objects.versions(*QUOTA_KINDS)
            if versions != self._seen:
                self._seen = versions
                if not self._is_hidden():
                    self._choose()
        return self.generation

    def _is_hidden(self) -> bool:
        """What is in force cannot be read any more, or what would go before it: it has not changed."""
        until = QUOTA_KINDS.index(self.in_force.kind) if self.in_force is not None else -1
        return any(self._objects.unreadable(kind) for kind in QUOTA_KINDS[: until + 1])

    def _choose(self) -> None:
        self._logged, self.trouble = self.trouble, {}
        found: InForce | None = None
        for kind in QUOTA_KINDS:
            ours = [one for one in self._objects.all(kind) if self._may_have_effect(kind, one)]
            if found is not None:
                for one in ours:
                    why = f"{found.kind.definition.name} of {found.kind.definition.api_version} is in force; one API is read at a time"
                    self._trouble(kind, one.key, why)
            elif ours:
                found = self._chosen_tree(ours) if kind is ObjectKind.ELASTIC_QUOTA_TREE else self._made_of(kind, ours)
        if found is None:
            found = self._deleted_tree()
        before, self.in_force = self.in_force, found
        self._log_lifted(before)
        if self.tree != (None if before is None else before.tree):
            self.generation += 1
        self.on_choice()

    def _deleted_tree(self) -> InForce | None:
        """The tree that was deleted last, if nobody has consented to lifting its limits.

        So `kubectl replace --force`, which deletes and creates, lifts them for no moment.
        """
        kind = ObjectKind.ELASTIC_QUOTA_TREE
        one = self._objects.last_removed(kind)
        if not isinstance(one, ElasticQuotaTree) or one.namespace != TREE_NAMESPACE or one.is_lifted:
            return None
        if self.in_force is not None and self.in_force.kind is kind:
            return self.in_force
        tree = one.tree or one.last_good
        return None if tree is None else InForce(kind, tree, one.key, one.uid)

    @property
    def is_deleted(self) -> bool:
        """The object that is in force is not there any more."""
        found = self.in_force
        if found is None or not found.name:
            return False
        namespace, _, name = found.name.partition("/")
        one = self._objects.get(found.kind, namespace, name)
        return one is None or one.uid != found.uid

    def _log_lifted(self, before: InForce | None) -> None:
        """Names namespaces that no quota bounds any more."""
        was = () if before is None else before.tree.leaf_of
        now = {} if self.tree is None else self.tree.leaf_of
        lifted = sorted(name for name in was if name not in now)
        if lifted:
            fields = {"count": len(lifted), "namespaces": lifted[:SHOWN_MAX]}
            logger.warning("namespaces have no quota any more", extra=fields)

    def trouble_of(self, kind: ObjectKind, key: str) -> str:
        """Why the object has no effect; empty for one that has."""
        return self.trouble.get(trouble_key(kind, key), "")

    def trouble_text(self) -> str:
        """Which objects have no effect, and why; empty where all have."""
        self.renew()
        said = [f"{place} has no effect: {why}" for place, why in sorted(self.trouble.items())]
        if self.is_deleted:
            said.insert(0, f"{self.name} was deleted, and stays in force until there are other quotas")
        return ", ".join([*said[:SHOWN_MAX], *([f"and {len(said) - SHOWN_MAX} more"] if len(said) > SHOWN_MAX else [])])

    def _may_have_effect(self, kind: ObjectKind, one: ClusterObject) -> bool:
        if kind is not ObjectKind.ELASTIC_QUOTA_TREE or one.namespace == TREE_NAMESPACE:
            return True
        self._trouble(kind, one.key, f"only a tree in namespace {TREE_NAMESPACE} has effect; move it there")
        return False

    def _trouble(self, kind: ObjectKind, key: str, why: str) -> None:
        """A tree goes by its key, any other object by its kind, too."""
        place = trouble_key(kind, key)
        self.trouble[place] = why
        if self._logged.get(place) != why:
            logger.warning("quota has no effect", extra={"object": place, "error": why})

    def _chosen_tree(self, trees: Sequence[ClusterObject]) -> InForce | None:
        """The one in force, else the oldest that is or was good, else the oldest; None where none has ever been good.

        A process that starts finds in the status of a broken tree what the one before it had in force.
        """
        kind, before = ObjectKind.ELASTIC_QUOTA_TREE, self.in_force
        known = [one for one in trees if before is not None and before.kind is kind and before.uid == one.uid]
        chosen = known[0] if known else min(trees, key=_rank)
        assert isinstance(chosen, ElasticQuotaTree)
        for other in trees:
            if other is not chosen:
                why = f"{chosen.key} is in force, and one tree is all there may be; delete one of them"
                self._trouble(kind, other.key, why)
        if chosen.tree is not None and _is_good(chosen):
            return InForce(kind, chosen.tree, chosen.key, chosen.uid)
        self._trouble(kind, chosen.key, f"not in force: {chosen.malformed}")
        if known or chosen.last_good is None:
            return before if known else None
        return InForce(kind, chosen.last_good, chosen.key, chosen.uid)

    def _made_of(self, kind: ObjectKind, quotas: Sequence[ClusterObject]) -> InForce | None:
        """The tree that many objects make without the changes that have mistakes, else the one before."""
        found = self._many[kind].choose(quotas)
        for key, why in found.left_out.items():
            self._trouble(kind, key, f"not in force: {why}")
        if found.tree is not None:
            return InForce(kind, found.tree, "")
        return self.in_force if self.in_force is not None and self.in_force.kind is kind else None


def _rank(one: ClusterObject) -> tuple[bool, str, str]:
    """Which of several trees goes first: one that may be in force, then the oldest."""
    assert isinstance(one, ElasticQuotaTree)
    return not _is_good(one) and one.last_good is None, one.created, one.key


def _is_good(one: ClusterObject) -> bool:
    return isinstance(one, ElasticQuotaTree) and one.tree is not None and not one.malformed


def trouble_key(kind: ObjectKind, key: str) -> str:
    """A tree goes by its key, any other object by its kind, too."""
    is_tree = kind is ObjectKind.ELASTIC_QUOTA_TREE
    return key if is_tree else f"{kind.definition.plural}.{kind.definition.group} {key}"
