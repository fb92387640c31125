"""Judges elastic quotas from API documents: levels whose pods take more than max, and wrong statuses.

A pod counts in the leaf of its namespace from when it has a node until it ends or is deleted. The tree in force is the last
valid one: an invalid document is reported and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from multisched.verify.demands import Requests, demand_of
from multisched.verify.devices import GPU
from multisched.verify.fields import Json, Unreadable, mapping, objects, text
from multisched.verify.gpu_quotas import gpu_thousandths
from multisched.verify.objects import is_over, name_of, node_name_of
from multisched.verify.quantities import amounts, quota_units
from multisched.verify.quota_tree import PODS, Excess, QuotaTree, Usage, read_tree

TREE_KIND: Final = "ElasticQuotaTree"
LIFT: Final = "multisched.io/lift-quotas"
"""Annotation of a tree: `true` allows lifting its limits when it is deleted."""
TREE_NAMESPACE: Final = "kube-system"
"""Trees in other namespaces have no effect."""
DEFAULT_SCHEDULER: Final = "default-scheduler"


def quota_requests(
    requests: Requests, annotations: Mapping[str, object], *, node: str, is_ours: bool = True
) -> Requests:
    """Returns what a pod counts for: its requests, its parts of GPUs, and one pod. Devices count in thousandths.

    `node`: of the pod; empty while it is pending.
    """
    found = {
        resource: quota_units(resource, Fraction(1)) * amount
        for resource, amount in requests.items()
        if "/" in resource
    }
    shared = gpu_thousandths(requests, annotations, node=node, is_ours=is_ours)
    if shared:
        found[GPU] = found.get(GPU, 0) + shared
    return {**requests, **found, PODS: 1}


class QuotaPod(NamedTuple):
    """A pod that counts, or that would count if it had a node."""

    key: str
    namespace: str
    node: str
    """Empty while it is pending."""
    requests: Requests
    is_gated: bool = False
    """True if scheduling gates hold it: its requests do not count as requested yet."""


class QuotaJudge:
    """Tracks the trees and the pods of a cluster, document by document."""

    def __init__(self, is_ours: Callable[[str], bool] = lambda scheduler: True) -> None:
        """`is_ours`: whether the program serves a schedulerName. Annotations about devices of other pods are ignored."""
        self._is_ours = is_ours
        self._trees: dict[str, QuotaTree] = {}
        """Name of each object -> its last valid tree, the oldest object first."""
        self._latest: dict[str, Json] = {}
        self._deleted: QuotaTree | None = None
        """The last tree deleted without the lift annotation: in force until there is another."""
        self.problems: dict[str, str] = {}
        """Name of a tree, or key of a pod -> its present problem. Such a tree changes nothing; such a pod does not count."""
        self.pods: dict[str, QuotaPod] = {}
        """uid -> pod, without pods that have ended."""

    @property
    def tree(self) -> QuotaTree | None:
        """The tree in force; None if there is none. Of several objects, the oldest counts."""
        return next(iter(self._trees.values()), self._deleted)

    def add(self, kind: str, document: Json) -> None:
        """Adds a new or changed object. Ignores kinds without influence on quotas."""
        name, namespace, uid = name_of(document)
        if kind == TREE_KIND and namespace == TREE_NAMESPACE:
            self._add_tree(name, document)
        elif kind == "Pod":
            key = f"{namespace or 'default'}/{name}"
            self.pods.pop(uid or key, None)
            if not is_over(document):
                self._add_pod(uid or key, key, namespace or "default", document)

    def _add_pod(self, uid: str, key: str, namespace: str, document: Json) -> None:
        self.problems.pop(key, None)
        try:
            requests, annotations = demand_of(document).most, mapping(mapping(document, "metadata"), "annotations")
            node, spec = node_name_of(document), mapping(document, "spec")
            is_ours = self._is_ours(text(spec, "schedulerName") or DEFAULT_SCHEDULER)
            demand = quota_requests(requests, annotations, node=node, is_ours=is_ours)
            gates = list(objects(spec, "schedulingGates"))
            self.pods[uid] = QuotaPod(key, namespace, node, demand, bool(gates))
        except Unreadable as error:
            self.problems[key] = str(error)

    def _add_tree(self, name: str, document: Json) -> None:
        self._latest[name] = document
        try:
            tree = read_tree(document)
        except Unreadable as error:
            self.problems[name] = str(error)
            last_good = _last_good(document)
            if name not in self._trees and last_good is not None:
                self._trees[name] = last_good
            return
        self.problems.pop(name, None)
        self._trees[name] = tree

    def forget(self, kind: str, document: Json) -> None:
        """Removes a deleted object."""
        name, namespace, uid = name_of(document)
        if kind == TREE_KIND and namespace == TREE_NAMESPACE:
            is_lifted = mapping(mapping(document, "metadata"), "annotations").get(LIFT) == "true"
            self._deleted = None if is_lifted else self.tree
            for of_trees in (self._trees, self._latest, self.problems):
                of_trees.pop(name, None)
        elif kind == "Pod":
            self.pods.pop(uid or f"{namespace or 'default'}/{name}", None)

    def usage(self, without: Iterable[str] = ()) -> Usage | None:
        """Returns the present usage, leaving out pods with these uids; None without a tree."""
        left_out = frozenset(without)
        placed = (pod for uid, pod in self.pods.items() if pod.node and uid not in left_out)
        return None if self.tree is None else self.tree.usage((pod.namespace, pod.requests) for pod in placed)

    def excesses(self) -> list[Excess]:
        """Returns every level whose pods take more than its max now."""
        usage = self.usage()
        return [] if usage is None else usage.excesses()

    def placement(self, uid: str, unknown: Iterable[str] = ()) -> list[Excess]:
        """Returns levels that this pod takes over their max, as the latest pod. `unknown`: uids of pods that do not count."""
        pod, usage = self.pods.get(uid), self.usage([uid, *unknown])
        return [] if pod is None or usage is None else usage.excesses_with(pod.namespace, pod.requests)

    def waiting_entitled(self) -> list[QuotaPod]:
        """Returns pods without a node with which their leaf would stay within its min."""
        usage = self.usage()
        waiting = [pod for pod in self.pods.values() if not pod.node]
        return [] if usage is None else [pod for pod in waiting if usage.is_entitled(pod.namespace, pod.requests)]

    def status_faults(self) -> list[str]:
        """Returns differences between the status of the tree in force and its pods."""
        usage = self.usage()
        if usage is None:
            return []
        asking = usage.copy()
        for pod in self.pods.values():
            if not (pod.node or pod.is_gated):
                asking.add(pod.namespace, pod.requests)
        document = next((self._latest[name] for name in self._trees), None)
        if document is None:  # its object is deleted and has no status
            return []
        return list(_status_faults(mapping(document, "status"), usage, asking))


def _last_good(document: Json) -> QuotaTree | None:
    """Returns the last valid tree in the status of an invalid tree, for a process that has not seen it."""
    root = mapping(mapping(document, "status"), "lastGood").get("root")
    try:
        return None if root is None else read_tree({**document, "spec": {"root": root}})
    except Unreadable:
        return None


def _status_faults(status: Json, usage: Usage, asking: Usage) -> Iterator[str]:
    """Compares `levels`, which has an entry per level, by path. `asking`: usage including pending pods."""
    levels = {level.path: level for level in usage.tree.root.below()}
    shown = mapping(status, "levels")
    resources = sorted({resource for level in levels.values() for resource in (*level.min, *level.max)})
    yield from (f"status.levels: {path} is not a level of the tree" for path in shown if path not in levels)
    for path, level in levels.items():
        if path not in shown:
            yield f"status.levels: {path} is missing"
            continue
        entry = mapping(shown, path)
        for resource in resources:
            used, least = usage.of(level)[resource], level.min.get(resource, 0)
            wanted = {"min": least, "max": level.max.get(resource, 0), "used": used, "borrowed": max(0, used - least)}
            wanted["requested"] = asking.of(level)[resource]
            for field, amount in wanted.items():
                said = _amount(entry, field, resource)
                if said != amount:
                    yield f"{path}: status says {said} {resource} {field}, it is {amount}"
            lent = _amount(entry, "lent", resource)
            if lent > max(0, least - used):
                yield f"{path}: status says {lent} {resource} lent, but {least - used} is idle"


def _amount(entry: Json, field: str, resource: str) -> int:
    """Returns the amount; 0 if the resource is missing."""
    found = amounts(entry, field)
    return quota_units(resource, found[resource]) if resource in found else 0
