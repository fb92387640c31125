"""The used, borrowed and lent amounts of each level of the tree in force.

Pure. The ledger counts the pods. A level *borrows* the amount that it uses above its min. It *lends* the part of its min that others use.
The amount that the children of a level borrow comes first from the part of its min that is not in the children's mins, and from what the
level borrows itself. Idle siblings lend the rest, in proportion to their idle amounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaTree
from multisched.plugins.quota.fair_shares import divide, fair_shares
from multisched.plugins.quota.quota_ledger import Level, QuotaLedger


class Use(msgspec.Struct, frozen=True):
    """The figures of one resource at one level, in the units of `model.quota_tree.quota_amount`."""

    used: int
    min: int
    max: int | None
    """None: the level has no max of its own."""
    borrowed: int
    lent: int
    requested: int
    """Used, plus the requests of pending pods."""
    fair_share: int


class LevelUse(msgspec.Struct, frozen=True):
    """The figures of one level of the tree."""

    path: str
    namespaces: tuple[str, ...]
    resources: Mapping[str, Use]


def level_uses(tree: QuotaTree, ledger: QuotaLedger, pending: Iterable[Pod]) -> list[LevelUse]:
    """Returns the figures of each level, parents before children. `ledger`: the ledger of that tree."""
    return uses_of(tree, ledger, requested_amounts(ledger, pending))


def uses_of(tree: QuotaTree, ledger: QuotaLedger, requested: Sequence[Mapping[str, int]]) -> list[LevelUse]:
    """Returns the same, if the requested amounts by level are known."""
    used = [{name: amount for name, amount in level.used.items() if amount} for level in ledger.levels]
    shares, lent, resources = fair_shares(tree, requested), lent_amounts(tree, ledger.levels), sorted(tree.resources)
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
                for name in resources
            },
        )
        for at, node in enumerate(tree.nodes)
    ]


def requested_amounts(ledger: QuotaLedger, pending: Iterable[Pod]) -> list[dict[str, int]]:
    """Returns, by level, resource -> used amount plus the requests of pending pods, without gated ones."""
    demands = PendingDemands(ledger)
    demands.add(pending)
    return demands.requested()


class PendingDemands:
    """Pending pods of one namespace with the same spec and device demands, counted together: 100,000 may be pending."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._ledger = ledger
        self._counts: Counter[Hashable] = Counter()
        self._some: dict[Hashable, Pod] = {}

    def add(self, pending: Iterable[Pod]) -> None:
        """Counts further pods."""
        ledger, holders = self._ledger, self._ledger.holders()
        waiting = [pod for pod in pending if not pod.gates and pod.uid not in holders]
        are_named, besides = ledger.names_leaves_by_label, ledger.amounts.beyond_requests
        keys = [(pod.namespace, id(pod.spec), id(pod.labels) if are_named else 0, besides(pod)) for pod in waiting]
        self._some.update(zip(keys, waiting, strict=True))
        self._counts.update(keys)

    def of_pods(self) -> Iterator[tuple[Pod, int]]:
        """Yields one pod of each kind, and how many of it are pending."""
        return ((self._some[key], count) for key, count in self._counts.items())

    def requested(self) -> list[dict[str, int]]:
        """Returns, by level of the tree in force now, resource -> used amount plus these requests."""
        ledger = self._ledger
        requested = [{name: amount for name, amount in level.used.items() if amount} for level in ledger.levels]
        for pod, count in self.of_pods():
            items = ledger.amounts.items(pod)
            for level in ledger.levels_of(pod):
                own = requested[level.at]
                for name, amount in items:
                    own[name] = own.get(name, 0) + count * amount
        return requested


def lent_amounts(tree: QuotaTree, levels: Sequence[Level]) -> list[dict[str, int]]:
    """Returns, by level, resource -> the part of its min that others use."""
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
    """Returns the part of the level's min that is neither used nor reserved by a guarantee."""
    reserved = level.reserved.get(resource, 0)
    return max(0, level.min.get(resource, 0) - level.used.get(resource, 0) - reserved)
