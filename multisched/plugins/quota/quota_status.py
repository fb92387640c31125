"""QuotaStatuses: the status of quota objects, in the form of each of three APIs.

Owns the mapping between objects and levels, and the latest figures of all levels. Figures are computed for all levels at
once and reused for each object until one is requested again. Objects whose figures have changed since are marked again.
All domains share one: the listener of the `QuotaLedger`.

`status.levels` of an ElasticQuotaTree has an entry per level, by its path: min, max, used, requested (including pending
pods), fairShare, borrowed and lent. While the object is invalid, `status.lastGood` has the tree that stays in force, so that
a process that starts can read it. ElasticQuotas of scheduler-plugins have `status.used`. Those of Koordinator also have the
annotations `runtime` (the fair share) and `request`, as Koordinator's controllers write them, and `multisched.io/in-force`:
the version in force, which may not be the current one. A process that starts reads it. The condition InForce gives
the reason if an object has no effect, if the API defines conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from multisched.framework.object_status import ObjectCondition, ObjectKey, ObjectStatus, StatusMarks
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import (
    IN_FORCE_ANNOTATION,
    ClusterObject,
    ElasticQuota,
    ElasticQuotaTree,
    KoordinatorQuota,
)
from multisched.model.decode_quotas import KOORDINATOR
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaTree, shown_amount
from multisched.model.quotas.writing import exact_root, linked_manifest
from multisched.plugins.quota.level_use import LevelUse, level_uses
from multisched.plugins.quota.quota_ledger import Level, QuotaLedger
from multisched.plugins.quota.quota_source import QUOTA_KINDS, InForce, QuotaSource

IN_FORCE: Final = "InForce"
"""Type of the condition."""
LEVELS_BYTES_MAX: Final = 256 * 1024
"""Limit of the levels in one status; those furthest from the root are left out. (etcd rejects objects over 1.5 MiB.)"""
LAST_GOOD_BYTES_MAX: Final = 256 * 1024
"""Limit of `status.lastGood`; a larger tree is not recorded and is lost when the process ends."""
ASKED_MAX: Final = 2
"""How often the same figures are reused for one object: once to compare, and once to write."""

TREE: Final = ObjectKind.ELASTIC_QUOTA_TREE


class QuotaStatuses:
    """Computes the statuses of all quota objects."""

    def __init__(
        self,
        ledger: QuotaLedger,
        source: QuotaSource,
        objects: ObjectsView,
        marks: StatusMarks,
        pending: Callable[[], Iterable[Pod]],
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._objects = objects
        self._marks = marks
        self._pending = pending
        self._keys: list[ObjectKey | None] = []
        """For each level: the object that represents it."""
        self._levels_by_key: dict[ObjectKey, int] = {}
        self._mapped: InForce | None = None
        """The tree for which the two mappings above were built."""
        self._sequence = 0
        """Increases whenever a figure may have changed."""
        self._changed_at: dict[ObjectKey, int] = {}
        self._uses: list[LevelUse] = []
        self._uses_tree: QuotaTree | None = None
        """The tree of these figures."""
        self._uses_at = -1
        self._asked: dict[ObjectKey, int] = {}
        """How often the current figures were used, by object."""
        self._kept = b""
        self._kept_of: InForce | None = None
        """The tree that `_kept` shows."""
        ledger.on_change = self.changed
        source.on_choice = self.mark_all

    def trouble_text(self) -> str:
        """See `QuotaSource`."""
        return self._source.trouble_text()

    def kept_tree(self) -> bytes:
        """Returns the tree in force as a manifest; empty if its limits end with its deletion, or if there is no such object."""
        self._ledger.renew()
        in_force = self._source.in_force
        if in_force is None or in_force.kind is not TREE or self._source.is_lifted:
            return b""
        if in_force is not self._kept_of:
            namespace, _, name = in_force.name.partition("/")
            metadata = {"name": name, "namespace": namespace, "uid": in_force.uid}
            self._kept = msgspec.json.encode(
                {
                    "apiVersion": TREE.definition.api_version,
                    "kind": TREE.definition.name,
                    "metadata": metadata,
                    "spec": {"root": exact_root(in_force.tree)},
                }
            )
            self._kept_of = in_force
        return self._kept

    # -- changes ---------------------------------------------------------------------------------------------------

    def changed(self, levels: tuple[Level, ...]) -> None:
        """Marks the objects of levels whose usage or pending requests changed."""
        self._sequence += 1
        in_force = self._ledger.in_force
        if in_force is None:
            return
        if in_force is not self._mapped:
            self._map(in_force)
        for key in self._keys if in_force.kind is TREE else [self._keys[level.at] for level in levels]:
            if key is not None:
                self._changed_at[key] = self._sequence
                self._marks.mark(*key)

    def pending_changed(self, pod: Pod) -> None:
        """See `PendingPodsPlugin`."""
        levels = self._ledger.levels_of(pod)
        if levels:
            self.changed(levels)

    def mark_all(self) -> None:
        """Marks all quota objects: the tree in force or the objects without effect may have changed."""
        self._sequence += 1
        for kind in QUOTA_KINDS:
            self._marks.mark_all(kind)

    def _map(self, in_force: InForce) -> None:
        self._mapped = in_force
        self._keys, self._changed_at, self._asked = [], {}, {}
        kind = in_force.kind
        if kind is TREE:
            namespace, _, name = in_force.name.partition("/")
            self._keys = [(TREE, namespace, name)]
        else:
            named = {_level_name(one): (kind, one.namespace, one.name) for one in self._objects.all(kind)}
            self._keys = [named.get(node.name) for node in in_force.tree.nodes]
        self._levels_by_key = {key: at for at, key in enumerate(self._keys) if key is not None}

    # -- statuses --------------------------------------------------------------------------------------------------

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        """See `StatusPlugin`."""
        self._ledger.renew()
        one = self._objects.get(kind, namespace, name)
        if one is None:
            return None
        in_force = self._ledger.in_force
        if in_force is not None and in_force is not self._mapped:
            self._map(in_force)
        key = (kind, namespace, name)
        condition = self._condition(kind, one)
        if in_force is None or key not in self._levels_by_key or in_force.uid not in ("", one.uid):
            return ObjectStatus(one.uid, {"levels": None, "lastGood": None} if kind is TREE else {}, (condition,))
        uses = self._uses_for(key, in_force.tree)
        if kind is TREE:
            last_good = _last_good(in_force.tree) if self._source.trouble_of(kind, one.key) else None
            fields = {**_tree_fields(uses, in_force.tree), "lastGood": last_good}
            return ObjectStatus(one.uid, fields, (condition,))
        use = uses[self._levels_by_key[key]]
        fields = {"used": _amounts(use, "used", _named(one))}
        if kind is ObjectKind.KOORDINATOR_QUOTA:
            noted = {f"{KOORDINATOR}{name}": _text(_amounts(use, field, _named(one))) for name, field in _NOTED}
            known = self._source.version_in_force(kind, one.key)
            if isinstance(known, KoordinatorQuota):
                noted[IN_FORCE_ANNOTATION] = msgspec.json.encode(linked_manifest(known), order="deterministic").decode()
            return ObjectStatus(one.uid, fields, (condition,), annotations=noted)
        return ObjectStatus(one.uid, fields, (condition,))

    def _uses_for(self, key: ObjectKey, tree: QuotaTree) -> list[LevelUse]:
        """Returns the figures for an object; marks the object again if they are older than its last change."""
        asked = self._asked.get(key, 0)
        if tree is not self._uses_tree or (asked >= ASKED_MAX and self._uses_at != self._sequence):
            self._count(tree)
            asked = 0
        self._asked[key] = asked + 1
        if self._changed_at.get(key, 0) > self._uses_at:
            self._marks.mark(*key)
        return self._uses

    def _count(self, tree: QuotaTree) -> None:
        before, self._uses = self._uses, level_uses(tree, self._ledger, self._pending())
        is_other, self._uses_tree = tree is not self._uses_tree, tree
        self._uses_at, self._asked = self._sequence, {}
        if is_other:
            return
        for key, at in self._levels_by_key.items():
            if before[at] != self._uses[at]:
                self._marks.mark(*key)

    def _condition(self, kind: ObjectKind, one: ClusterObject) -> ObjectCondition:
        trouble, in_force = self._source.trouble_of(kind, one.key), self._ledger.in_force
        if not trouble:
            return self._good_condition(kind, in_force)
        is_broken = isinstance(one, ElasticQuotaTree | ElasticQuota | KoordinatorQuota) and bool(one.problems)
        reason = "Broken" if is_broken or one.malformed else "NoEffect"
        stays = in_force is not None and in_force.kind is kind and in_force.uid in ("", one.uid)
        what = "the last valid tree" if kind is TREE else "its last valid version, if any,"
        kept = f"; {what} stays in force" if stays else ""
        return ObjectCondition(IN_FORCE, "False", reason, f"{trouble}{kept}")

    def _good_condition(self, kind: ObjectKind, in_force: InForce | None) -> ObjectCondition:
        """Returns the condition of an object without problems."""
        if in_force is None or in_force.kind is not kind:
            return ObjectCondition(IN_FORCE, "False", "NoEffect", "it is not in force")
        return ObjectCondition(IN_FORCE, "True", IN_FORCE, f"{len(in_force.tree.nodes)} levels are in force")


_NOTED: Final = (("runtime", "fair_share"), ("request", "requested"))
"""Koordinator annotation -> the field of `Use` that it shows."""


def _level_name(one: ClusterObject) -> str:
    """Returns the name of the object's level: the namespace in scheduler-plugins, the name in Koordinator."""
    return one.namespace if isinstance(one, ElasticQuota) else one.name


def _named(one: ClusterObject) -> Iterable[str]:
    """Returns the resources in the quota's min or max."""
    return sorted({*one.min, *one.max}) if isinstance(one, ElasticQuota | KoordinatorQuota) else ()


def _amounts(use: LevelUse, field: str, resources: Iterable[str]) -> dict[str, str]:
    """Returns resource -> quantity."""
    known = use.resources
    return {name: shown_amount(name, getattr(known[name], field)) for name in resources if name in known}


def _text(amounts: Mapping[str, str]) -> str:
    return msgspec.json.encode(amounts, order="sorted").decode()


def _tree_fields(uses: list[LevelUse], tree: QuotaTree) -> dict[str, object]:
    """Returns `levels`, limited to those nearest to the root, and `levelsLeftOut`, the number of omitted levels."""
    levels: dict[str, object] = {}
    left_bytes = LEVELS_BYTES_MAX
    for at in sorted(range(len(uses)), key=lambda at: (len(tree.paths[at]), at)):
        entry = _level_document(uses[at])
        left_bytes -= len(msgspec.json.encode(entry)) + len(uses[at].path) + 4
        if left_bytes < 0:
            break
        levels[uses[at].path] = entry
    return {"levels": levels, "levelsLeftOut": len(uses) - len(levels) or None}


def _last_good(tree: QuotaTree) -> dict[str, Any] | None:
    """Returns the tree that stays in force while the spec is invalid; None if it is too large."""
    found = {"root": exact_root(tree)}
    return found if len(msgspec.json.encode(found)) <= LAST_GOOD_BYTES_MAX else None


def _level_document(use: LevelUse) -> dict[str, Any]:
    found: dict[str, dict[str, str]] = {name: {} for name in ("min", "max", "used", "requested", "fairShare")}
    borrowed: dict[str, str] = {}
    lent: dict[str, str] = {}
    for name, one in use.resources.items():
        if one.min:
            found["min"][name] = shown_amount(name, one.min)
        if one.max is not None:
            found["max"][name] = shown_amount(name, one.max)
        found["used"][name] = shown_amount(name, one.used)
        found["requested"][name] = shown_amount(name, one.requested)
        found["fairShare"][name] = shown_amount(name, one.fair_share)
        if one.borrowed:
            borrowed[name] = shown_amount(name, one.borrowed)
        if one.lent:
            lent[name] = shown_amount(name, one.lent)
    return {**found, **({"borrowed": borrowed} if borrowed else {}), **({"lent": lent} if lent else {})}
