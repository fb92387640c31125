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
from typing import Final, NamedTuple

from msgspec.structs import replace

from multisched.model.cluster_objects import KoordinatorQuota
from multisched.model.decode_quotas import KOORDINATOR, annotation_path, label_path
from multisched.model.objects import Requests
from multisched.model.quota_tree import DEPTH_MAX, NODES_MAX, QuotaNode, QuotaTree, TreeProblem, shown_amount
from multisched.model.quotas.reading import Problems, ProblemsByObject, ReadQuotas

POD_LABEL: Final = f"{KOORDINATOR}name"
ROOT: Final = "koordinator-root-quota"
BUILT_IN: Final = frozenset({ROOT, "koordinator-system-quota", "koordinator-default-quota"})
"""Quotas that Koordinator creates for pods without one; they bound no pods here."""


def read_linked(quotas: Iterable[KoordinatorQuota]) -> ReadQuotas:
    """Returns the tree of all quotas; no tree if there are none."""
    return LinkedQuotas(quotas).read()


class LinkedQuotas:
    """The quotas by name, and the problems of their relations.

    When a quota is added or removed, only quotas that it relates to are checked again. So which of many changes can take effect
    together is found by trying them.
    """

    def __init__(self, quotas: Iterable[KoordinatorQuota] = ()) -> None:
        self._named: dict[str, list[KoordinatorQuota]] = {}
        """Name -> the quotas with that name, the first by key first."""
        self.quotas: dict[str, KoordinatorQuota] = {}
        """Name -> the first quota with this name."""
        self._children: dict[str, dict[str, KoordinatorQuota]] = {}
        self._sums: dict[str, dict[str, int]] = {}
        """Name of a parent -> the min of its children in all, by resource."""
        self._dirty: set[str] = set()
        """Names of quotas that must be checked again."""
        self._problems: dict[str, list[_Found]] = {}
        """Name -> problems of the quotas with this name."""
        for one in quotas:
            self._file(one)
        for name in self._named:
            self._choose(name)

    def exchange(self, before: KoordinatorQuota | None, now: KoordinatorQuota | None) -> None:
        """Replaces a version of a quota by another; None: the quota is added, or removed."""
        if before is not None and before.name not in BUILT_IN:
            self._named[before.name].remove(before)
        if now is not None:
            self._file(now)
        for name in {one.name for one in (before, now) if one is not None} - BUILT_IN:
            self._choose(name)

    def _file(self, one: KoordinatorQuota) -> None:
        if one.name in BUILT_IN:
            return
        named = self._named.setdefault(one.name, [])
        named.append(one)
        if len(named) > 1:
            named.sort(key=lambda other: other.key)

    def problems(self) -> Problems:
        """Returns the current problems by object."""
        for name in self._dirty:
            found = [*self._problems_of(name)]
            if found:
                self._problems[name] = found
            else:
                self._problems.pop(name, None)
        self._dirty.clear()
        found = [one for some in self._problems.values() for one in some]
        problems = ProblemsByObject()
        if len(self.quotas) >= NODES_MAX:
            last = self.quotas[sorted(self.quotas)[NODES_MAX - 1]]
            what = f"there are {NODES_MAX} quotas or more"
            found.append(_Found(0, last.name, last.key, TreeProblem("metadata.name", what, "use fewer")))
        for one in sorted(found, key=lambda one: (one.phase, one.name, one.key)):
            problems.add(one.key, one.problem)
        return problems.by_object()

    def _choose(self, name: str) -> None:
        """Links the first quota with the name in place of the one that was linked before."""
        named, before = self._named[name], self.quotas.get(name)
        now = named[0] if named else None
        self._dirty.add(name)
        if now is before:
            return
        is_in_place = before is not None and now is not None and _links(before) == _links(now)
        if before is not None:
            self._count(before, -1)
            if not is_in_place:
                del self._children[_parent(before)][name], self.quotas[name]
        if now is not None:
            self._count(now, 1)
            self._children.setdefault(_parent(now), {})[name] = now
            self.quotas[name] = now
        if not is_in_place and name in self._children:
            self._note_below(name)

    def _count(self, one: KoordinatorQuota, sign: int) -> None:
        parent = _parent(one)
        sums = self._sums.setdefault(parent, {})
        for resource, amount in one.min.items():
            sums[resource] = sums.get(resource, 0) + sign * amount
        self._dirty.add(parent)

    def _note_below(self, name: str) -> None:
        """Has everything below the quota checked again: it may be in a cycle or too deep now, or no longer."""
        seen, waiting = {name}, [name]
        while waiting:
            new = self._children.get(waiting.pop(), {}).keys() - seen
            seen |= new
            waiting += new
        self._dirty |= seen

    def _problems_of(self, name: str) -> Iterator[_Found]:
        first = self.quotas.get(name)
        for one in self._named.get(name, ()):
            if one is first and not one.malformed and not one.problems:
                continue
            said = [TreeProblem("spec", one.malformed, "rewrite it")] if one.malformed and not one.problems else []
            said += one.problems
            if one is not first and first is not None:
                what = f"{first.key} has the same name"
                said.append(TreeProblem("metadata.name", what, "give each quota a unique name"))
            yield from (_Found(0, name, one.key, problem) for problem in said)
        if first is not None:
            for problem in (*self._problems_of_place(first), *self._problems_of_sums(first)):
                yield _Found(1, name, first.key, problem)
            if first.is_parent and first.namespaces:
                place, what = annotation_path("namespaces"), "only leaves have pods, and it is a parent"
                yield _Found(2, name, first.key, TreeProblem(place, what, "list them in a child of it"))

    def _problems_of_place(self, one: KoordinatorQuota) -> Iterator[TreeProblem]:
        name = _parent(one)
        if not name:
            return
        parent = self.quotas.get(name)
        if parent is None:
            what = f"there is no quota {name}"
            yield TreeProblem(label_path("parent"), what, "name an existing one, or remove the label")
            return
        if not parent.is_parent:
            yield TreeProblem(label_path("parent"), f"{name} is not a parent", f"label {name} is-parent: true")
        if parent.tree_id != one.tree_id:
            what = f"{one.tree_id or '(none)'} is not {parent.tree_id or '(none)'} of its parent {name}"
            yield TreeProblem(label_path("tree-id"), what, "write the same in all quotas of a tree")
        for number, above in enumerate(self._above(one)):
            if above is one or number >= DEPTH_MAX:
                what = f"it is below itself, or below more than {DEPTH_MAX} others"
                yield TreeProblem(label_path("parent"), what, "name a parent that leads to the root")
                return

    def _above(self, one: KoordinatorQuota) -> Iterator[KoordinatorQuota]:
        """Yields its parent and so on; endless if the quotas form a cycle."""
        above = self.quotas.get(_parent(one))
        while above is not None:
            yield above
            above = self.quotas.get(_parent(above))

    def _problems_of_sums(self, one: KoordinatorQuota) -> Iterator[TreeProblem]:
        sums = self._sums.get(one.name)
        for resource, total in sorted(sums.items()) if sums else ():
            own = one.min.get(resource, 0)
            if total > own:
                what = f"min of its children is {shown_amount(resource, total)} in all, over its own {shown_amount(resource, own)}"
                yield TreeProblem(f"spec.min.{resource}", what, "raise it, or lower that of its children")

    def read(self) -> ReadQuotas:
        """Returns the tree; no tree if there are problems, or no quotas."""
        problems = self.problems()
        return ReadQuotas(None if problems or not self.quotas else self._tree(), problems)

    def _tree(self) -> QuotaTree:
        """Builds the tree, if there are no problems: parents before children, siblings by name."""
        quotas = [self.quotas[name] for name in sorted(self.quotas)]
        children = {name: [below[each] for each in sorted(below)] for name, below in self._children.items()}
        own = {one.namespace: one.name for one in quotas if one.name == one.namespace and not one.is_parent}
        defaults = {**{name: one.name for one in reversed(quotas) for name in one.namespaces}, **own}
        top = children.get("", [])
        nodes = [QuotaNode(ROOT, ROOT, -1, (), _sums(one.min for one in top), {})]
        below: list[list[int]] = [[]]
        waiting = [(one, 0) for one in reversed(top)]
        while waiting:
            one, parent = waiting.pop()
            at = len(nodes)
            nodes.append(_node(one, parent, f"{nodes[parent].path}.{one.name}", defaults))
            below.append([])
            below[parent].append(at)
            waiting += [(child, at) for child in reversed(children.get(one.name, []))]
        leaves = {node.name: at for at, node in enumerate(nodes) if at and not self.quotas[node.name].is_parent}
        linked = [replace(node, children=tuple(below[at])) for at, node in enumerate(nodes)]
        return QuotaTree.of(linked, POD_LABEL, leaves, {name: _listed(self.quotas[name]) for name in leaves})


class _Found(NamedTuple):
    """A problem, and its place among those of all quotas."""

    phase: int
    """0: of the quota alone and its name; 1: of its parent and children; 2: of its namespaces."""
    name: str
    key: str
    problem: TreeProblem


def _parent(one: KoordinatorQuota) -> str:
    return "" if one.parent == ROOT else one.parent


def _links(one: KoordinatorQuota) -> tuple[object, ...]:
    """Returns what quotas below it are checked against."""
    return _parent(one), one.is_parent, one.tree_id


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
