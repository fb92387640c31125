"""ElasticQuotas in Koordinator's form, in plain arithmetic: one object per level, and pods that name their quota by a label.

The last valid version of each quota that contradicts no other one is in force. Each namespace is listed by one leaf. A label
therefore names the leaf of its namespace, no leaf (it then counts as missing), or another team's leaf, for which the pod must not
be placed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import orjson

from multisched.model.objects import Pod
from multisched.verify.demands import Requests
from multisched.verify.fields import Json, Unreadable, mapping, text
from multisched.verify.quantities import amounts, quota_units
from multisched.verify.quota_tree import Level, QuotaTree
from multisched.verify.quotas import QuotaJudge

KIND: Final = "ElasticQuota"
PREFIX: Final = "quota.scheduling.koordinator.sh/"
LABEL: Final = f"{PREFIX}name"
"""On a pod: the name of its quota. On a quota it is ignored."""
ROOT: Final = "koordinator-root-quota"


class LinkedQuota(NamedTuple):
    """The content of one object."""

    name: str
    parent: str
    """Empty for the root."""
    is_parent: bool
    namespaces: tuple[str, ...]
    min: Requests
    max: Requests


def read_quota(document: Json) -> LinkedQuota:
    """Raises Unreadable if the object is invalid."""
    metadata, spec = mapping(document, "metadata"), mapping(document, "spec")
    labels, node_resources = (
        mapping(metadata, "labels"),
        text(mapping(metadata, "annotations"), f"{PREFIX}namespaces", "[]"),
    )
    least, most = ({of: quota_units(of, much) for of, much in amounts(spec, side).items()} for side in ("min", "max"))
    for resource, amount in least.items():
        if amount > most.get(resource, -1):
            raise Unreadable(f"min.{resource}: over max")
    is_parent = text(labels, f"{PREFIX}is-parent") == "true"
    return LinkedQuota(
        text(metadata, "name"),
        text(labels, f"{PREFIX}parent"),
        is_parent,
        tuple(orjson.loads(node_resources)),
        least,
        most,
    )


def _noted(document: Json) -> LinkedQuota | None:
    """Returns the version that was in force, by the annotation of a scheduler."""
    metadata = mapping(document, "metadata")
    note = text(mapping(metadata, "annotations"), "multisched.io/in-force")
    found = orjson.loads(note) if note else None
    return read_quota(found) if found is not None and found["metadata"]["uid"] == metadata["uid"] else None


class LinkedTree(QuotaTree):
    """The tree of the quotas in force."""

    def __init__(self, quotas: Collection[LinkedQuota]) -> None:
        tops = [one for one in quotas if not one.parent]
        children = tuple(_level(one, ROOT, quotas) for one in tops)
        super().__init__(Level(ROOT, ROOT, _sum(tops), {}, (), children))
        self._listed = {one.name: one.namespaces for one in quotas if not one.is_parent}

    def misnames(self, pod: Pod) -> str:
        """Returns the quota that the pod names although its namespace is not listed there; empty for none."""
        name = pod.labels.get(LABEL, "")
        return "" if pod.namespace in self._listed.get(name, (pod.namespace,)) else name


def misnamed(tree: QuotaTree | None, pod: Pod) -> str:
    return tree.misnames(pod) if isinstance(tree, LinkedTree) else ""


def _level(quota: LinkedQuota, above: str, quotas: Collection[LinkedQuota]) -> Level:
    path = f"{above}.{quota.name}"
    children = tuple(_level(one, path, quotas) for one in quotas if one.parent == quota.name)
    return Level(quota.name, path, quota.min, quota.max, quota.namespaces, children)


def _sum(quotas: Collection[LinkedQuota]) -> dict[str, int]:
    named = sorted({resource for one in quotas for resource in one.min})
    return {resource: sum(one.min.get(resource, 0) for one in quotas) for resource in named}


def _is_consistent(quotas: Mapping[str, LinkedQuota]) -> bool:
    for one in quotas.values():
        parent = quotas.get(one.parent)
        if one.parent and (parent is None or not parent.is_parent):
            return False
        children = [child for child in quotas.values() if child.parent == one.name]
        if any(amount > one.min.get(resource, 0) for resource, amount in _sum(children).items()):
            return False
    return True


class LinkedQuotaJudge(QuotaJudge):
    """Follows ElasticQuotas. If there is an ElasticQuotaTree, it is used instead."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, tuple[Json, LinkedQuota | None]] = {}
        """Name -> current object, and its content; None if it is invalid."""
        self._age: dict[str, tuple[object, ...]] = {}
        """Name -> sort key of its latest change. Changes of the status do not count."""
        self._is_starting = True
        """True until the first list is complete: until the tree is read, or a known object changes."""
        self._quotas: dict[str, LinkedQuota] = {}
        """Name -> version in force."""
        self._linked: LinkedTree | None = None
        self._shown: dict[str, LinkedQuota] = {}
        """The quotas in `_linked`."""

    @property
    def tree(self) -> QuotaTree | None:
        self._start()
        return super().tree or self._linked

    def add(self, kind: str, document: Json) -> None:
        if kind != KIND:
            super().add(kind, document)
            return
        name = text(mapping(document, "metadata"), "name")
        before = self._written.get(name)
        if before is not None:
            self._start()
        try:
            quota = read_quota(document)
        except Unreadable:
            quota = None
        self._written[name] = document, quota
        if before is None or before[1] != quota:
            self._age[name] = (1, int(mapping(document, "metadata")["resourceVersion"]))
        if self._is_starting:
            return
        noted = _noted(document) if before is None else None
        if noted is not None:
            self._quotas[name] = noted
        self._settle()

    def recall(self, tree: QuotaTree | None) -> None:
        """Puts the tree in force that was so before a process started, as long as no other quotas are valid."""
        if not isinstance(tree, LinkedTree):
            self._deleted = tree

    def _start(self) -> None:
        """Puts the annotated versions in force if the current ones contradict each other, then tries the others: parents first,
        then by age.
        """
        if not self._is_starting or not self._written:
            return
        self._is_starting = False
        now = {name: quota for name, (_, quota) in self._written.items() if quota is not None}
        noted = {
            name: quota for name, (document, _) in self._written.items() if (quota := _noted(document)) is not None
        }
        if len(now) == len(self._written) and _is_consistent(now):
            self._quotas = now
        elif _is_consistent(noted):
            self._quotas = noted
        for name, quota in now.items():
            created = text(mapping(self._written[name][0], "metadata"), "creationTimestamp")
            self._age[name] = (0, name not in noted, not quota.is_parent, created, name)
        self._settle()

    def forget(self, kind: str, document: Json) -> None:
        if kind != KIND:
            super().forget(kind, document)
            return
        name = text(mapping(document, "metadata"), "name")
        self._written.pop(name, None)
        self._age.pop(name, None)
        self._quotas.pop(name, None)
        self._settle()

    def _settle(self) -> None:
        """Puts versions in force that contradict no other one, the oldest change first."""
        changed = [one for one in self._by_age() if self._quotas.get(one.name) != one]
        while True:
            fitting = (one for one in changed if _is_consistent({**self._quotas, one.name: one}))
            one = next(fitting, None)
            if one is None:
                break
            self._quotas[one.name] = one
            changed.remove(one)
        if self._quotas != self._shown:
            self._shown = dict(self._quotas)
            self._linked = LinkedTree(list(self._quotas.values())) if self._quotas else None

    def _by_age(self) -> list[LinkedQuota]:
        known = [quota for _, quota in self._written.values() if quota is not None]
        return sorted(known, key=lambda quota: self._age[quota.name])

    def status_faults(self) -> list[str]:
        self._start()
        return super().status_faults() if super().tree is not None else list(self._faults_of_used())

    def _faults_of_used(self) -> Iterator[str]:
        """Yields wrong `used` amounts of quotas whose current version is in force."""
        usage = self.usage()
        if usage is None:
            return
        levels = {level.name: level for level in usage.tree.root.below()}
        for name, (document, quota) in self._written.items():
            if quota is None or self._quotas.get(name) != quota:
                continue
            shown = {of: quota_units(of, much) for of, much in amounts(mapping(document, "status"), "used").items()}
            for resource in sorted({*quota.min, *quota.max}):
                used = usage.of(levels[name])[resource]
                if shown.get(resource, 0) != used:
                    yield f"{name}: status says {shown.get(resource, 0)} {resource} used, it is {used}"
