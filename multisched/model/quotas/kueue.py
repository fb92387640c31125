"""ClusterQueues, Cohorts and LocalQueues of Kueue as a tree: cohorts are inner levels, ClusterQueues leaves, LocalQueues their namespaces.

Source: kueue apis/kueue/v1beta2 (clusterqueue_types.go, cohort_types.go, localqueue_types.go); v1beta1 and v1alpha1 names are read, too.
nominalQuota is min, nominalQuota plus borrowingLimit is max, and what lendingLimit keeps is the guarantee. Quotas of several flavors
are summed. A cohort is guaranteed the sum of its members' min and its own quota; a cohort without a parent cannot borrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Final

import msgspec

from multisched.model.quantity import QuantityError, parse_nano
from multisched.model.quota_tree import DEPTH_MAX, read_amounts
from multisched.model.quotas.drafts import (
    ROOT,
    WEIGHT_MAX,
    Draft,
    Json,
    Losses,
    NamespaceOwners,
    Objects,
    Translation,
    part_of,
    report_empty_leaves,
    sum_of,
    text_of,
    translated,
)
from multisched.model.quotas.reading import ProblemsByObject

GROUP: Final = "kueue.x-k8s.io"
QUEUE, COHORT, LOCAL_QUEUE, FLAVOR = "ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor"
KINDS: Final = frozenset({QUEUE, COHORT, LOCAL_QUEUE, FLAVOR})

WEIGHT_SCALE: Final = 1_000
"""Weights of Kueue may be fractions; those of a tree are whole numbers."""
NANO: Final = 10**9


class _Quota(msgspec.Struct):
    """The quota of one resource, over all flavors."""

    nominal: int = 0
    borrowing: int | None = 0
    """None: unlimited."""
    lending: int = 0
    """The amount that may be lent; all of it if there is no limit."""
    is_lending_limited: bool = True
    """True if every flavor has a limit."""
    flavors: list[str] = []


def read_kueue(documents: Sequence[Json]) -> Translation:
    """Returns the tree of all objects."""
    reader = _Reader(documents)
    return translated(reader.root, reader.problems, reader.losses)


class _Reader:
    def __init__(self, documents: Sequence[Json]) -> None:
        self.problems = ProblemsByObject()
        self.losses = Losses()
        self.root = Draft(ROOT)
        self._objects = Objects(documents, self.problems)
        self._cohorts: dict[str, Draft] = {}
        self._parents: dict[str, str] = {}
        self._quotas: dict[str, Mapping[str, _Quota]] = {}
        self._queues: dict[str, Draft] = {}
        for key, name, one in self._objects.of(COHORT):
            self._read_cohort(key, name, one)
        for key, name, one in self._objects.of(QUEUE):
            self._read_queue(key, name, one)
        self._link_cohorts()
        self._read_local_queues()
        for key, _, one in self._objects.of(FLAVOR):
            spec = part_of(one, "spec", key, "", self.problems)
            self.losses.report_others(key, "spec", spec, ())
        if not self.problems:
            self._sum_up()
            self._share_out()
            report_empty_leaves(self.root, self.losses, "give its LocalQueues too, or name its namespaces in the tree")

    # -- objects ---------------------------------------------------------------------------------------------------

    def _read_cohort(self, key: str, name: str, one: Json) -> None:
        spec = part_of(one, "spec", key, "", self.problems)
        draft = self._cohorts[name] = Draft(name, key)
        draft.weight = self._weight(key, spec)
        parent = text_of(spec, "parentName", key, "spec", self.problems) or text_of(
            spec, "parent", key, "spec", self.problems
        )
        if parent:
            self._parents[name] = parent
        self._quotas[key] = self._groups(key, spec)
        self.losses.report_others(key, "spec", spec, ("parentName", "parent", "resourceGroups", "fairSharing"))

    def _read_queue(self, key: str, name: str, one: Json) -> None:
        spec = part_of(one, "spec", key, "", self.problems)
        draft = self._queues[name] = Draft(name, key)
        draft.weight = self._weight(key, spec)
        cohort = text_of(spec, "cohortName", key, "spec", self.problems) or text_of(
            spec, "cohort", key, "spec", self.problems
        )
        self._quotas[key] = self._groups(key, spec)
        for resource, quota in self._quotas[key].items():
            draft.min[resource] = quota.nominal
            if not cohort:
                draft.max[resource] = quota.nominal
            elif quota.borrowing is not None:
                draft.max[resource] = quota.nominal + quota.borrowing
            draft.guarantee[resource] = quota.nominal - min(quota.nominal, quota.lending) if cohort else 0
        if not cohort:
            self._report_limits(key, self._quotas[key])
        above = self._cohort(cohort) if cohort else self.root
        above.children.append(draft)
        carried = ("cohortName", "cohort", "resourceGroups", "fairSharing", "namespaceSelector")
        self.losses.report_others(key, "spec", spec, carried)

    def _report_limits(self, key: str, quotas: Mapping[str, _Quota]) -> None:
        """Reports limits without effect: of a queue or cohort that can neither borrow nor lend."""
        for resource, quota in quotas.items():
            if quota.borrowing:
                self.losses.report(
                    key, "spec.resourceGroups", f"borrowingLimit of {resource}: it has no siblings to borrow from"
                )
            if quota.is_lending_limited:
                self.losses.report(
                    key, "spec.resourceGroups", f"lendingLimit of {resource}: it has no siblings to lend to"
                )

    def _cohort(self, name: str) -> Draft:
        """Returns the draft of a cohort; a cohort need not exist as an object."""
        return self._cohorts.setdefault(name, Draft(name, f"{COHORT} {name}"))

    def _link_cohorts(self) -> None:
        for name, parent in self._parents.items():
            self._cohort(parent)
            above, steps = parent, 1
            while above in self._parents and above != name and steps <= DEPTH_MAX:
                above, steps = self._parents[above], steps + 1
            if above == name or steps > DEPTH_MAX:
                what = f"it is below itself, or below more than {DEPTH_MAX} others"
                self.problems.report(
                    self._cohorts[name].key, "spec.parentName", what, "name a parent that leads to none"
                )
                return
        for name, draft in sorted(self._cohorts.items()):
            above_it = self._parents.get(name)
            (self._cohorts[above_it] if above_it else self.root).children.append(draft)

    def _read_local_queues(self) -> None:
        owners = NamespaceOwners(self.losses)
        for key, _, one in self._objects.of(LOCAL_QUEUE):
            spec = part_of(one, "spec", key, "", self.problems)
            metadata = part_of(one, "metadata", key, "", self.problems)
            namespace = text_of(metadata, "namespace", key, "metadata", self.problems)
            name = text_of(spec, "clusterQueue", key, "spec", self.problems)
            if not namespace or not name:
                missing = "spec.clusterQueue" if namespace else "metadata.namespace"
                self.problems.report(key, missing, "it is missing", "write one")
            elif name not in self._queues:
                self.losses.report(key, "spec.clusterQueue", f"{QUEUE} {name} is not given; its pods have no quota")
            else:
                owners.give(namespace, self._queues[name], key, "spec.clusterQueue")
            self.losses.report_others(key, "spec", spec, ("clusterQueue",))

    # -- quotas ----------------------------------------------------------------------------------------------------

    def _groups(self, key: str, spec: Json) -> dict[str, _Quota]:
        found: dict[str, _Quota] = {}
        for at, group in enumerate(self._list(key, "spec.resourceGroups", spec.get("resourceGroups"))):
            above = f"spec.resourceGroups[{at}].flavors"
            for number, flavor in enumerate(self._list(key, above, group.get("flavors"))):
                place, called = f"{above}[{number}]", str(flavor.get("name"))
                for position, quota in enumerate(self._list(key, f"{place}.resources", flavor.get("resources"))):
                    self._add(key, f"{place}.resources[{position}]", called, quota, found)
        for resource, total in found.items():
            if len(total.flavors) > 1:
                what = f"flavors {', '.join(total.flavors)} are added up: a tree bounds {resource} as a whole"
                self.losses.report(key, "spec.resourceGroups", what)
        return found

    def _list(self, key: str, path: str, items: Any) -> list[Json]:
        if items is None:
            return []
        if isinstance(items, list) and all(isinstance(one, Mapping) for one in items):
            return items
        self.problems.report(key, path, "not a list of objects", "write a list")
        return []

    def _add(self, key: str, place: str, flavor: str, quota: Json, found: dict[str, _Quota]) -> None:
        resource = quota.get("name")
        if not isinstance(resource, str) or not resource:
            self.problems.report(key, f"{place}.name", "not the name of a resource", "write for example cpu")
            return
        if quota.get("nominalQuota") is None:
            self.problems.report(key, f"{place}.nominalQuota", "it is missing", "write an amount, 0 for none")
        nominal, borrowing, lending = (
            self._amount(key, f"{place}.{field}", resource, quota.get(field))
            for field in ("nominalQuota", "borrowingLimit", "lendingLimit")
        )
        total = found.setdefault(resource, _Quota())
        total.nominal += nominal or 0
        if total.borrowing is not None:
            total.borrowing = None if borrowing is None else total.borrowing + borrowing
        total.lending += (nominal or 0) if lending is None else lending
        total.is_lending_limited = total.is_lending_limited and lending is not None
        total.flavors.append(flavor)
        self.losses.report_others(key, place, quota, ("name", "nominalQuota", "borrowingLimit", "lendingLimit"))

    def _amount(self, key: str, path: str, resource: str, text: Any) -> int | None:
        if text is None:
            return None

        def report(_: str, what: str, fix: str) -> None:
            self.problems.report(key, path, what, fix)

        return read_amounts({resource: text}, path, report).get(resource, 0)

    def _weight(self, key: str, spec: Json) -> int | None:
        sharing = part_of(spec, "fairSharing", key, "spec", self.problems)
        text = sharing.get("weight")
        if text is None:
            return None
        try:
            nano = parse_nano(text) if isinstance(text, str | int | float) and not isinstance(text, bool) else -1
        except QuantityError:
            nano = -1
        weight = nano * WEIGHT_SCALE // NANO
        if nano < 0 or weight > WEIGHT_MAX:
            self.problems.report(
                key, "spec.fairSharing.weight", f"{text!r:.63} is not a weight", "write for example 1 or 0.5"
            )
            return None
        return weight

    # -- the whole -------------------------------------------------------------------------------------------------

    def _sum_up(self) -> None:
        """Computes min of each cohort and the root: their own quota and all below, from the leaves upward."""
        queues = {draft.key for draft in self._queues.values()}
        for draft in reversed(list(self.root.below())):
            if draft.key in queues:
                continue
            own = self._quotas.get(draft.key, {})
            draft.min = sum_of([*(child.min for child in draft.children), {r: q.nominal for r, q in own.items()}])
            if draft.name not in self._parents or draft is self.root:
                draft.max = dict(draft.min)
                self._report_limits(draft.key, own)
                continue
            for resource, quota in own.items():
                least = draft.min[resource]
                if quota.borrowing is not None:
                    draft.max[resource] = least + quota.borrowing
                if quota.is_lending_limited:
                    draft.guarantee[resource] = least - min(least, quota.lending)

    def _share_out(self) -> None:
        """Scales weights to small whole numbers. If any object has a weight, the others get Kueue's default."""
        drafts = [one for one in self.root.below() if one is not self.root]
        if all(one.weight is None for one in drafts):
            return
        for one in drafts:
            one.weight = WEIGHT_SCALE if one.weight is None else one.weight
        divisor = gcd(*(one.weight or 0 for one in drafts)) or 1
        for one in drafts:
            one.weight = (one.weight or 0) // divisor
