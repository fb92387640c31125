"""Writes a tree of any API as an ElasticQuotaTree, and lists what had to be changed.

Where the tree leaves a choice, the result follows the rules of `read_tree`: names are unique, the root has the same amounts as
min and max, and no max exceeds that of the level above. Rules that the tree itself violates are reported by `read_tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from multisched.model.cluster_objects import KoordinatorQuota
from multisched.model.decode_quotas import KOORDINATOR
from multisched.model.objects import Requests
from multisched.model.quota_tree import (
    ALL,
    GUARANTEE_ATTRIBUTE,
    WEIGHT_ATTRIBUTE,
    QuotaNode,
    QuotaTree,
    shown_amount,
)
from multisched.model.quotas.drafts import Loss, Losses, sum_of

API_VERSION: Final = "scheduling.sigs.k8s.io/v1beta1"
KIND: Final = "ElasticQuotaTree"
TREE_NAMESPACE: Final = "kube-system"
DEFAULT_NAME: Final = "elasticquotatree"
OPEN_SHOWN: Final = 3
"""Levels without a bound that are named in a message."""


class WrittenTree(msgspec.Struct, frozen=True):
    """A document, and what had to be changed."""

    document: dict[str, Any]
    losses: tuple[Loss, ...] = ()


NO_TOTAL: Final[Requests] = {}


def written(tree: QuotaTree, name: str = DEFAULT_NAME, total: Requests = NO_TOTAL) -> WrittenTree:
    """Returns the tree as an object of that name. `total`: the root's amounts of resources without a bound in the tree."""
    losses = Losses()
    root = _Writer(tree, total, losses).root()
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": TREE_NAMESPACE},
        "spec": {"root": root},
    }
    return WrittenTree(document, losses.found())


class _Writer:
    def __init__(self, tree: QuotaTree, total: Requests, losses: Losses) -> None:
        self._nodes = tree.nodes
        self._total = total
        self._losses = losses
        self._names = self._unique_names()
        self._bounds: list[Requests] = []
        self._min: Requests = {}
        if tree.pod_label:
            what = f"label {tree.pod_label} of pods is not converted: a pod counts for the leaf of its namespace"
            losses.report("", "", what)

    def root(self) -> dict[str, Any]:
        self._min, most = self._root_bounds(self._nodes[0])
        self._bounds = [most]
        for node in self._nodes[1:]:
            self._bounds.append(self._within(node, self._bounds[node.parent]))
        return self._written(0)

    # -- what is changed -------------------------------------------------------------------------------------------

    def _unique_names(self) -> list[str]:
        """Makes names unique: objects of two kinds may have the same name."""
        taken: set[str] = set()
        names = []
        for node in self._nodes:
            name, number = node.name, 2
            while name in taken:
                name, number = f"{node.name}-{number}", number + 1
            if name != node.name:
                self._losses.report("", node.path, f"it is written as {name}: names must be unique")
            taken.add(name)
            names.append(name)
        return names

    def _root_bounds(self, root: QuotaNode) -> tuple[Requests, Requests]:
        """Returns min and max of the root, which are equal: it has no siblings to borrow from."""
        children = [self._nodes[child] for child in root.children]
        least = sum_of([child.min for child in children])
        found: dict[str, int] = {}
        for resource in {**root.min, **root.max, **least, **sum_of([child.max for child in children]), **self._total}:
            bound = root.max.get(resource, self._total.get(resource))
            if bound is None:
                sure = max(root.min.get(resource, 0), least.get(resource, 0))
                bound = self._free_bound(root, children, resource, sure)
            if bound is not None:
                found[resource] = bound
        return found, found

    def _free_bound(self, root: QuotaNode, children: Sequence[QuotaNode], resource: str, sure: int) -> int | None:
        """Returns the bound of a root without one: what its children may hold together; None if none is needed."""
        open_ones = [child.path for child in children if resource not in child.max]
        if not open_ones:
            bound = max(sure, sum(child.max[resource] for child in children))
            return self._chosen(root, resource, bound, "the sum of its children's max")
        if not sure:
            return None
        why = f"the sum of its children's min, and {', '.join(open_ones[:OPEN_SHOWN])} may borrow no more"
        return self._chosen(root, resource, sure, why)

    def _chosen(self, root: QuotaNode, resource: str, bound: int, why: str) -> int:
        what = f"the root has no bound and is written with {shown_amount(resource, bound)}: {why}"
        fix = f"set the cluster's total with --total {resource}=AMOUNT"
        self._losses.report("", f"{root.path}.max.{resource}", f"{what}; {fix}")
        return bound

    def _within(self, node: QuotaNode, above: Requests) -> Requests:
        """Limits max to that of the level above, which could never be exceeded."""
        return {r: min(amount, above.get(r, amount)) for r, amount in node.max.items()}

    # -- what is written -------------------------------------------------------------------------------------------

    def _written(self, at: int) -> dict[str, Any]:
        node = self._nodes[at]
        least = node.min if at else self._min
        document: dict[str, Any] = {"name": self._names[at]}
        if least:
            document["min"] = quantities(least)
        if self._bounds[at]:
            document["max"] = quantities(self._bounds[at])
        attributes = self._attributes(node)
        if attributes:
            document["attributes"] = attributes
        if node.namespaces:
            document["namespaces"] = list(node.namespaces)
        if node.children:
            document["children"] = [self._written(child) for child in node.children]
        return document

    def _attributes(self, node: QuotaNode) -> dict[str, str]:
        found = {}
        if node.weights is not None and node.weights != node.max:
            what = "weights by resource are not converted: it and its siblings share idle resources by max"
            self._losses.report("", node.path, what)
        elif node.weights is None and node.weight is not None:
            found[WEIGHT_ATTRIBUTE] = str(node.weight)
        guarantee = {resource: amount for resource, amount in node.guarantee.items() if amount}
        if guarantee:
            is_all = guarantee == {resource: amount for resource, amount in node.min.items() if amount}
            text = ",".join(f"{resource}={shown_amount(resource, amount)}" for resource, amount in guarantee.items())
            found[GUARANTEE_ATTRIBUTE] = ALL if is_all else text
        return found


def exact_root(tree: QuotaTree) -> dict[str, Any]:
    """Returns `spec.root` of a tree that `read_tree` returned; reading it again gives the same tree."""
    documents: list[dict[str, Any]] = []
    for node in tree.nodes:
        document: dict[str, Any] = {"name": node.name, "min": quantities(node.min), "max": quantities(node.max)}
        attributes = {} if node.weight is None else {WEIGHT_ATTRIBUTE: str(node.weight)}
        if node.guarantee:
            attributes[GUARANTEE_ATTRIBUTE] = ",".join(
                f"{of}={much}" for of, much in quantities(node.guarantee).items()
            )
        if attributes:
            document["attributes"] = attributes
        if node.namespaces:
            document["namespaces"] = list(node.namespaces)
        documents.append(document)
        if node.parent >= 0:
            documents[node.parent].setdefault("children", []).append(document)
    return documents[0]


def linked_manifest(one: KoordinatorQuota) -> dict[str, Any]:
    """Returns a valid ElasticQuota of Koordinator as a manifest; reading it again gives the same quota."""
    labels = {
        "parent": one.parent,
        "is-parent": "true" if one.is_parent else "",
        "tree-id": one.tree_id,
        "allow-lent-resource": "" if one.is_lent else "false",
    }
    noted = {
        "shared-weight": None if one.weights is None else quantities(one.weights),
        "namespaces": list(one.namespaces),
        "total-resource": quantities(one.total),
    }
    metadata = {
        "name": one.name,
        "namespace": one.namespace,
        "uid": one.uid,
        "labels": {f"{KOORDINATOR}{name}": text for name, text in labels.items() if text},
        "annotations": {f"{KOORDINATOR}{name}": msgspec.json.encode(of).decode() for name, of in noted.items() if of},
    }
    return {"metadata": metadata, "spec": {"min": quantities(one.min), "max": quantities(one.max)}}


def quantities(amounts: Requests) -> dict[str, str]:
    """Formats amounts without loss."""
    return {resource: shown_amount(resource, amount) for resource, amount in amounts.items()}
