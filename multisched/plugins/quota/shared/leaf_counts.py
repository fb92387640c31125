"""LeafCounts: what pods of domains under other Leases use of each leaf, under one tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from multisched.model.objects import Pod
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import Level

LeafKey = tuple[str, str]
"""Domain, and name of a leaf."""


class CountedPod(msgspec.Struct, frozen=True):
    """A pod of a borrower on a node."""

    key: LeafKey
    levels: tuple[Level, ...]
    amount: SliceAmount
    """Only of resources for which a level has a max."""


class LeafCounts:
    """The pods that are counted, and their sums. Implements `quota_ledger.Counts`."""

    def __init__(self, domain_of: Mapping[str, str]) -> None:
        """`domain_of`: schedulerName -> borrower."""
        self._domain_of = domain_of
        self.pods: dict[str, CountedPod] = {}
        self.unbound: set[str] = set()
        """uids of those that the API server does not show on a node yet."""
        self.sums: dict[LeafKey, SliceAmount] = {}
        self._limited: dict[int, frozenset[str]] = {}

    def limited(self, levels: tuple[Level, ...]) -> frozenset[str]:
        """Returns the resources of which the leaf or a level above it has a max."""
        at = levels[0].at
        if at not in self._limited:
            self._limited[at] = frozenset(name for level in levels for name in level.max)
        return self._limited[at]

    def amount(self, levels: tuple[Level, ...], items: Items) -> SliceAmount:
        """Returns the part of an amount that some max limits."""
        limited = self.limited(levels)
        return SliceAmount.of({name: amount for name, amount in items if name in limited})

    def added(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> None:
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if domain is None:
            return
        counted = self.pods[pod.uid] = CountedPod((domain, levels[0].name), levels, self.amount(levels, items))
        self.sums[counted.key] = self.used(counted.key) + counted.amount
        if not pod.node:
            self.unbound.add(pod.uid)

    def bound(self, uid: str) -> None:
        self.unbound.discard(uid)

    def removed(self, uid: str) -> None:
        counted = self.pods.pop(uid, None)
        self.unbound.discard(uid)
        if counted is not None:
            left = self.used(counted.key) - counted.amount
            if left:
                self.sums[counted.key] = left
            else:
                self.sums.pop(counted.key, None)

    def used(self, key: LeafKey) -> SliceAmount:
        return self.sums.get(key, NOTHING)

    def leaves_of(self, domain: str) -> Collection[str]:
        """Returns the leaves of which the domain's pods use something."""
        return {leaf for one, leaf in self.sums if one == domain}
