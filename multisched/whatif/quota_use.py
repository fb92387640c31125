"""What each level of the tree in force holds, borrows and lends, of a snapshot of the cluster.

Pure. Pods are counted by the scheduler's own ledger. A level *borrows* what it holds over its min. It *lends* what of its min
others hold. What children of a level borrow comes first from its min that none of them has, and from what it borrows itself.
The rest their idle siblings lend, in proportion to what is idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaTree, shown_amount
from multisched.plugins.quota.fair_shares import divide, fair_shares
from multisched.plugins.quota.quota_ledger import Level, QuotaLedger, items_of
from multisched.plugins.quota.quota_source import QUOTA_KINDS, QuotaSource
from multisched.state.object_store import ObjectStore
from multisched.whatif.sandbox import ClusterSnapshot


class Use(msgspec.Struct, frozen=True):
    """Of one resource at one level. Milli-CPU, bytes and counts."""

    used: int
    min: int
    max: int | None
    """None: no bound of its own."""
    borrowed: int
    lent: int
    requested: int
    """Held, and asked for by pods that wait."""
    fair_share: int


class LevelUse(msgspec.Struct, frozen=True):
    """One level of the tree."""

    path: str
    namespaces: tuple[str, ...]
    resources: Mapping[str, Use]


class QuotaUse(msgspec.Struct, frozen=True):
    """All of a tree."""

    source: str
    """What the tree is made of; empty where none is in force."""
    levels: tuple[LevelUse, ...]
    """Parents before children."""
    trouble: Mapping[str, str]
    """Objects that have no effect -> why."""
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """For programs: amounts as quantities of Kubernetes."""
        return {
            "source": self.source,
            "levels": [
                {
                    "path": level.path,
                    "namespaces": list(level.namespaces),
                    "resources": {name: _shown(name, use) for name, use in level.resources.items()},
                }
                for level in self.levels
            ],
            "noEffect": dict(self.trouble),
            "notes": list(self.notes),
        }


def quota_use(snapshot: ClusterSnapshot) -> QuotaUse:
    """Of the tree that the snapshot's objects put in force."""
    source = source_of(snapshot.objects)
    source.renew()
    levels: tuple[LevelUse, ...] = ()
    name = ""
    if source.in_force is not None:
        ledger = QuotaLedger(source, lambda: snapshot.placed)
        ledger.renew()
        levels = tuple(level_uses(source.in_force.tree, ledger, snapshot.pending))
        definition = source.in_force.kind.definition
        key = f" {source.in_force.name}" if source.in_force.name else "s"
        name = f"{definition.name}{key} ({definition.api_version})"
    return QuotaUse(name, levels, source.trouble, snapshot.notes)


def source_of(objects: Sequence[tuple[ObjectKind, ClusterObject]]) -> QuotaSource:
    """What the quotas among the objects put in force."""
    store = ObjectStore()
    for kind, one in objects:
        if kind in QUOTA_KINDS:
            store.set(kind, one)
    return QuotaSource(store)


def level_uses(tree: QuotaTree, ledger: QuotaLedger, pending: Sequence[Pod]) -> list[LevelUse]:
    """Of each level, parents before children. `ledger`: of that tree."""
    used = [{name: amount for name, amount in level.used.items() if amount} for level in ledger.levels]
    requested = [dict(one) for one in used]
    for pod in pending:
        for level in ledger.levels_of(pod):
            for name, amount in items_of(pod):
                requested[level.at][name] = requested[level.at].get(name, 0) + amount
    shares, lent = fair_shares(tree, requested), lent_amounts(tree, ledger.levels)
    return [
        LevelUse(
            node.path,
            node.namespaces,
            {
                name: Use(
                    used[at].get(name, 0),
                    node.min.get(name, 0),
                    node.max.get(name),
                    max(0, used[at].get(name, 0) - node.min.get(name, 0)),
                    lent[at].get(name, 0),
                    requested[at].get(name, 0),
                    shares[at].get(name, 0),
                )
                for name in sorted(tree.resources)
            },
        )
        for at, node in enumerate(tree.nodes)
    ]


def lent_amounts(tree: QuotaTree, levels: Sequence[Level]) -> list[dict[str, int]]:
    """By level: resource -> what of its min others hold."""
    lent: list[dict[str, int]] = [{} for _ in tree.nodes]
    for name in tree.resources:
        for at, node in enumerate(tree.nodes):
            if not node.children:
                continue
            children = [levels[child] for child in node.children]
            idle = [_idle(one, name) for one in children]
            over = sum(_over(one, name) for one in children)
            spare = max(0, node.min.get(name, 0) - sum(one.min.get(name, 0) for one in children))
            passed_on = lent[at].get(name, 0)
            out = min(sum(idle), max(0, over - spare - _over(levels[at], name)) + passed_on)
            parts = divide(out, [(0, most, most) for most in idle])
            for child, part in zip(node.children, parts, strict=True):
                lent[child][name] = part
    return lent


def _over(level: Level, resource: str) -> int:
    return max(0, level.used.get(resource, 0) - level.min.get(resource, 0))


def _idle(level: Level, resource: str) -> int:
    """What of its min nobody below it holds, and no guarantee keeps free."""
    kept = level.kept.get(resource, 0)
    return max(0, level.min.get(resource, 0) - level.used.get(resource, 0) - kept)


def _shown(resource: str, use: Use) -> dict[str, str]:
    amounts = msgspec.structs.asdict(use)
    amounts["fairShare"] = amounts.pop("fair_share")
    return {field: shown_amount(resource, amount) for field, amount in amounts.items() if amount is not None}
