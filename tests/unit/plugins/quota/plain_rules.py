"""The rules of reclaiming once more, in plain arithmetic over what stands: nothing is kept, and nothing is clever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from multisched.model.objects import Pod
from multisched.model.quota_tree import QuotaTree
from tests.unit.plugins.quota.quota_cluster import QuotaCluster

Gone = frozenset[str]
NOBODY: Gone = frozenset()
SETS_MAX = 600


def sets_of(pods: Iterable[Pod]) -> Iterator[Gone]:
    """Small sets first, up to a number of them."""
    uids = sorted(pod.uid for pod in pods)
    count = 0
    for size in range(1, len(uids) + 1):
        for chosen in combinations(uids, size):
            yield frozenset(chosen)
            count += 1
            if count == SETS_MAX:
                return


class Plain:
    """A cluster at one moment."""

    def __init__(self, cluster: QuotaCluster) -> None:
        tree = cluster.ledger.tree
        assert tree is not None
        self.tree: QuotaTree = tree
        self.table = cluster.domain.cache.nodes
        self.standing = {entry.pod.uid: entry.pod for entry in cluster.domain.cache}
        names = ("cpu", "memory")
        self.resources = [one for one in names if any(node.min.get(one, 0) for node in tree.nodes)]
        """Of which some level is sure."""

    def path(self, pod: Pod) -> tuple[int, ...]:
        return self.tree.paths[self.tree.leaf_of[pod.namespace]]

    def used(self, at: int, resource: str, gone: Gone) -> int:
        return sum(
            pod.requests.get(resource, 0)
            for uid, pod in self.standing.items()
            if uid not in gone and at in self.path(pod)
        )

    def counted(self, at: int, pod: Pod) -> list[str]:
        node = self.tree.nodes[at]
        return [one for one in self.resources if pod.requests.get(one, 0) and (one in node.min or one in node.max)]

    def entitled(self, pod: Pod, gone: Gone = NOBODY) -> int:
        """Levels from its leaf upward within whose min it stays."""
        for count, at in enumerate(self.path(pod)):
            counted, least = self.counted(at, pod), self.tree.nodes[at].min
            within = (self.used(at, r, gone) + pod.requests[r] <= least.get(r, 0) for r in counted)
            if not counted or not all(within):
                return count
        return len(self.path(pod))

    def may_go(self, victim: Pod, taker: Pod, gone: Gone) -> bool:
        """Whether the victim could come back only to borrow, once the others of `gone` have left."""
        theirs, ours = self.path(victim), self.path(taker)
        if theirs[0] == ours[0]:
            return victim.spec.priority < taker.spec.priority
        common = next(at for at in theirs if at in ours)
        if ours.index(common) > self.entitled(taker):
            return False
        below, without = theirs[: theirs.index(common)], gone - {victim.uid}
        return any(
            victim.requests.get(r, 0)
            and all(
                r in self.counted(at, victim) and self.used(at, r, without) > self.tree.nodes[at].min.get(r, 0)
                for at in below
            )
            for r in self.counted(ours[0], taker) or self.resources
            if taker.requests.get(r, 0)
        )

    def may_all_go(self, gone: Gone, taker: Pod) -> bool:
        return all(self.may_go(self.standing[uid], taker, gone) for uid in gone)

    def held(self, at: int, resource: str, gone: Gone, more: tuple[int, int] = (-1, 0)) -> int:
        """What nobody else can have of a level, guarantees below it included. `more`: a leaf, and what is added to it."""
        below = self.tree.nodes[at].children
        if not below:
            return self.used(at, resource, gone) + (more[1] if at == more[0] else 0)
        kept = [self.tree.nodes[child].guarantee.get(resource, 0) for child in below]
        return sum(max(self.held(child, resource, gone, more), own) for child, own in zip(below, kept, strict=True))

    def is_within_max(self, taker: Pod, gone: Gone) -> bool:
        for at in self.path(taker):
            for resource, most in self.tree.nodes[at].max.items():
                amount = taker.requests.get(resource, 0)
                held = self.held(at, resource, gone, (self.path(taker)[0], amount))
                if amount and held > max(most, self.held(at, resource, gone)):
                    return False
        return True

    def nodes_for(self, taker: Pod, gone: Gone = NOBODY) -> list[str]:
        """Nodes that take it, if its quota does."""
        if not self.is_within_max(taker, gone):
            return []
        return [
            node.name
            for row, node in self.table.live_rows()
            if taker.requests["cpu"] + sum(p.requests["cpu"] for p in self.table.pods_on(row) if p.uid not in gone)
            <= node.allocatable["cpu"]
        ]

    def ways(self, taker: Pod) -> Iterator[Gone]:
        """Sets of pods that may go for the taker, each alone and all together."""
        alone = [pod for pod in self.standing.values() if self.may_go(pod, taker, frozenset({pod.uid}))]
        return (gone for gone in sets_of(alone) if self.may_all_go(gone, taker))
