"""ElasticQuotas of Koordinator as a tree that is described by labels.

Source: koordinator apis/extension/elastic_quota.go, pkg/webhook/elasticquota/quota_topology_check.go and
pkg/scheduler/plugins/elasticquota/plugin_helper.go. All trees (label tree-id) are below one root, which has no bound of its own:
the nodes of the cluster bound it. A label of the pod names its leaf, if that leaf lists the pod's namespace. Without the label, the
leaf is the quota in the pod's namespace that has the namespace's name, else the first by name whose annotation lists the namespace.
Unlike in Koordinator, a label that names no leaf counts as missing, so that a pod cannot leave its namespace's quota. Nor can it
with the name of a leaf that does not list the namespace: a pending pod is refused for it. Several quotas may list one namespace;
labels choose among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from multisched.model.cluster_objects import KoordinatorQuota
from multisched.model.decode_quotas import KOORDINATOR, annotation_path, label_path
from multisched.model.objects import Requests
from multisched.model.quota_tree import DEPTH_MAX, NODES_MAX, QuotaNode, QuotaTree, shown_amount
from multisched.model.quotas.reading import ProblemsByObject, ReadQuotas

POD_LABEL: Final = f"{KOORDINATOR}name"
ROOT: Final = "koordinator-root-quota"
BUILT_IN: Final = frozenset({ROOT, "koordinator-system-quota", "koordinator-default-quota"})
"""Quotas that Koordinator creates for pods without one; they bound no pods here."""


def read_linked(quotas: Iterable[KoordinatorQuota]) -> ReadQuotas:
    """Returns the tree of all quotas; no tree if there are none."""
    forest = _Forest(one for one in quotas if one.name not in BUILT_IN)
    if forest.problems or not forest.quotas:
        return ReadQuotas(None, forest.problems.by_object())
    return ReadQuotas(forest.tree())


class _Forest:
    """The quotas by name, and the problems of their relations."""

    def __init__(self, quotas: Iterable[KoordinatorQuota]) -> None:
        self.problems = ProblemsByObject()
        self.quotas: dict[str, KoordinatorQuota] = {}
        self._children: dict[str, list[KoordinatorQuota]] = {}
        for one in sorted(quotas, key=lambda one: (one.name, one.key)):
            self._add(one)
        for one in self.quotas.values():
            self._check_place(one)
            self._check_sums(one)
        self._check_namespaces()

    def _add(self, one: KoordinatorQuota) -> None:
        if one.malformed and not one.problems:
            self.problems.report(one.key, "spec", one.malformed, "rewrite it")
        self.problems.add(one.key, *one.problems)
        first = self.quotas.setdefault(one.name, one)
        if first is not one:
            self.problems.report(
                one.key, "metadata.name", f"{first.key} has the same name", "give each quota a unique name"
            )
            return
        self._children.setdefault(self._parent(one), []).append(one)
        if len(self.quotas) == NODES_MAX:
            self.problems.report(one.key, "metadata.name", f"there are {NODES_MAX} quotas or more", "use fewer")

    @staticmethod
    def _parent(one: KoordinatorQuota) -> str:
        return "" if one.parent == ROOT else one.parent

    def _check_place(self, one: KoordinatorQuota) -> None:
        name = self._parent(one)
        if not name:
            return
        place, parent = label_path("parent"), self.quotas.get(name)
        if parent is None:
            self.problems.report(
                one.key, place, f"there is no quota {name}", "name an existing one, or remove the label"
            )
            return
        if not parent.is_parent:
            self.problems.report(one.key, place, f"{name} is not a parent", f"label {name} is-parent: true")
        if parent.tree_id != one.tree_id:
            what = f"{one.tree_id or '(none)'} is not {parent.tree_id or '(none)'} of its parent {name}"
            self.problems.report(one.key, label_path("tree-id"), what, "write the same in all quotas of a tree")
        for number, above in enumerate(self._above(one)):
            if above is one or number >= DEPTH_MAX:
                what = f"it is below itself, or below more than {DEPTH_MAX} others"
                self.problems.report(one.key, place, what, "name a parent that leads to the root")
                return

    def _above(self, one: KoordinatorQuota) -> Iterator[KoordinatorQuota]:
        """Yields its parent and so on; endless if the quotas form a cycle."""
        above = self.quotas.get(self._parent(one))
        while above is not None:
            yield above
            above = self.quotas.get(self._parent(above))

    def _check_sums(self, one: KoordinatorQuota) -> None:
        for resource, total in _sums(child.min for child in self._children.get(one.name, ())).items():
            own = one.min.get(resource, 0)
            if total > own:
                what = f"min of its children is {shown_amount(resource, total)} in all, over its own {shown_amount(resource, own)}"
                self.problems.report(one.key, f"spec.min.{resource}", what, "raise it, or lower that of its children")

    def _check_namespaces(self) -> None:
        for one in self.quotas.values():
            if one.is_parent and one.namespaces:
                what = "only leaves have pods, and it is a parent"
                self.problems.report(one.key, annotation_path("namespaces"), what, "list them in a child of it")

    def tree(self) -> QuotaTree:
        """Builds the tree: parents before children, siblings by name."""
        quotas = self.quotas.values()
        own = {one.namespace: one.name for one in quotas if one.name == one.namespace and not one.is_parent}
        defaults = {**{name: one.name for one in reversed(quotas) for name in one.namespaces}, **own}
        top = self._children.get("", [])
        nodes = [QuotaNode(ROOT, ROOT, -1, (), _sums(one.min for one in top), {})]
        below: list[list[int]] = [[]]
        waiting = [(one, 0) for one in reversed(top)]
        while waiting:
            one, parent = waiting.pop()
            at = len(nodes)
            nodes.append(_node(one, parent, f"{nodes[parent].path}.{one.name}", defaults))
            below.append([])
            below[parent].append(at)
            waiting += [(child, at) for child in reversed(self._children.get(one.name, []))]
        leaves = {node.name: at for at, node in enumerate(nodes) if at and not self.quotas[node.name].is_parent}
        linked = [replace(node, children=tuple(below[at])) for at, node in enumerate(nodes)]
        return QuotaTree.of(linked, POD_LABEL, leaves, {name: _listed(self.quotas[name]) for name in leaves})


def _listed(one: KoordinatorQuota) -> frozenset[str]:
    """Returns the namespaces whose pods may use the quota: those of its annotation, and its own if they have the same name."""
    return frozenset((*one.namespaces, one.namespace) if one.name == one.namespace else one.namespaces)


def _node(one: KoordinatorQuota, parent: int, path: str, defaults: Mapping[str, str]) -> QuotaNode:
    """Builds a node. `defaults`: namespace -> the quota of its pods without a label."""
    listed = () if one.is_parent else (*one.namespaces, one.namespace)
    namespaces = [name for name in listed if defaults.get(name) == one.name]
    return QuotaNode(
        one.name,
        path,
        parent,
        (),
        one.min,
        {**one.max, **{name: _within(one, name, amount) for name, amount in one.total.items()}},
        tuple(dict.fromkeys(namespaces)),
        weights=one.weights,
        guarantee={} if one.is_lent else one.min,
    )


def _within(one: KoordinatorQuota, resource: str, total: int) -> int:
    """Returns the bound of the root of a tree with this total."""
    return max(one.min.get(resource, 0), min(total, one.max.get(resource, total)))


def _sums(amounts: Iterable[Requests]) -> Requests:
    found: dict[str, int] = {}
    for one in amounts:
        for resource, amount in one.items():
            found[resource] = found.get(resource, 0) + amount
    return found
