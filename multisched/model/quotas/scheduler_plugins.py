"""ElasticQuotas of scheduler-plugins as a tree: a root, and a leaf for each namespace.

Source: scheduler-plugins pkg/capacityscheduling/elasticquota.go. A namespace may use up to its max while all
together stay within the sum of all min. That sum is the root's max, and 0 for a resource in no min. Unlike there, a quota
does not bound a resource that neither its min nor its max names; there CPU and memory are then 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from multisched.model.cluster_objects import ElasticQuota
from multisched.model.quota_tree import QuotaNode, QuotaTree
from multisched.model.quotas.reading import ProblemsByObject, ReadQuotas

ROOT: Final = "root"


def read_flat(quotas: Iterable[ElasticQuota]) -> ReadQuotas:
    """Returns the tree of all quotas; no tree if there are none."""
    problems, by_namespace = ProblemsByObject(), dict[str, ElasticQuota]()
    for one in sorted(quotas, key=lambda one: one.key):
        if one.malformed and not one.problems:
            problems.report(one.key, "spec", one.malformed, "rewrite it")
        problems.add(one.key, *one.problems)
        first = by_namespace.setdefault(one.namespace, one)
        if first is not one:
            what = f"{first.name} is the quota of namespace {one.namespace} already"
            problems.report(one.key, "metadata.name", what, "delete one of them")
    if problems or not by_namespace:
        return ReadQuotas(None, problems.by_object())
    return ReadQuotas(_tree(list(by_namespace.values())))


def _tree(quotas: list[ElasticQuota]) -> QuotaTree:
    named = {resource for one in quotas for resource in (*one.min, *one.max)}
    whole = {resource: sum(one.min.get(resource, 0) for one in quotas) for resource in sorted(named)}
    leaves = [
        QuotaNode(one.namespace, f"{ROOT}.{one.namespace}", 0, (), one.min, one.max, (one.namespace,)) for one in quotas
    ]
    root = QuotaNode(ROOT, ROOT, -1, tuple(range(1, len(leaves) + 1)), whole, whole)
    return QuotaTree.of([root, *leaves])
