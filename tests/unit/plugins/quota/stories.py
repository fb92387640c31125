"""Random trees of quotas, nodes too small for all, and pods that arrive in bursts, for property tests.

Made from a seed, so that most of them come to a reclaim; what fails is shown whole.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from hypothesis import strategies as st

from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE
from multisched.testing.builders import make_node
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import Json


class Arrival(NamedTuple):
    """A pod to come: CPUs, bytes of memory."""

    namespace: str
    cpu: int
    memory: int
    priority: int
    gang: str = ""


class Story(NamedTuple):
    """A tree, CPUs of nodes, and who arrives."""

    root: Json
    nodes: list[int]
    arrivals: list[Arrival]
    minimums: dict[tuple[str, str], int]
    """(gang, namespace) -> how many of its members start together."""


class _Tree:
    """One to three groups of one to three leaves; what children are sure of is a little less than what is above them."""

    def __init__(self, rng: Random, *, has_guarantees: bool, has_gangs: bool) -> None:
        self.rng = rng
        self.least_max = 10 if has_gangs else 5
        self.more = [4, 16] if has_gangs else [0, 2, 8]
        self.has_guarantees = has_guarantees
        self.resources = ("cpu", "memory") if rng.random() < 0.4 else ("cpu",)
        self.names: list[str] = []

    def root(self) -> Json:
        groups = [self._group("abc"[at]) for at in range(self.rng.randint(1, 3))]
        root = self._above("root", groups)
        root["min"] = root["max"] = {r: max(1, root["max"][r]) for r in self.resources}
        root.pop("attributes", None)
        return root

    def _group(self, at: str) -> Json:
        return self._above(at, [self._leaf(f"{at}{child}") for child in range(self.rng.randint(1, 3))])

    def _leaf(self, at: str) -> Json:
        self.names.append(at)
        named = ("cpu",) if self.rng.random() < 0.15 else self.resources
        least = {one: self.rng.randint(0, self.least_max) for one in named}
        most = {one: least[one] + self.rng.choice(self.more) for one in named}
        return {"name": at, "min": least, "max": most, "namespaces": [at], **self._kept(least)}

    def _above(self, at: str, children: list[Json]) -> Json:
        least = {r: sum(c["min"].get(r, 0) for c in children) + self.rng.choice((0, 0, 2)) for r in self.resources}
        most = {r: max(least[r], *(c["max"].get(r, 0) for c in children)) for r in self.resources}
        return {"name": at, "min": least, "max": most, "children": children, **self._kept(least)}

    def _kept(self, least: Json) -> Json:
        if not self.has_guarantees or not least["cpu"] or self.rng.random() < 0.8:
            return {}
        some = f"cpu={self.rng.randint(1, least['cpu'])}"
        return {"attributes": {GUARANTEE_ATTRIBUTE: self.rng.choice(["all", some])}}


def made(seed: int, *, has_guarantees: bool, has_gangs: bool = False) -> Story:
    rng = Random(seed)
    tree = _Tree(rng, has_guarantees=has_guarantees, has_gangs=has_gangs)
    root = tree.root()
    whole = max(2, round(root["max"]["cpu"] * rng.choice((0.4, 0.6, 0.8, 1.2))))
    count = rng.randint(1, 4)
    nodes = [max(2, whole // count + rng.randint(0, 2)) for _ in range(count)]
    arrivals, minimums, left = (
        list[Arrival](),
        dict[tuple[str, str], int](),
        sum(nodes) + rng.randint(2, 12) + 12 * has_gangs,
    )
    while left > 0 and len(arrivals) < 24 + 12 * has_gangs:
        namespace, count = rng.choice(tree.names), rng.randint(1, 6) + 2 * has_gangs
        gang = f"g{len(arrivals)}" if has_gangs and rng.random() < 0.85 else ""
        if gang:
            minimums[gang, namespace] = rng.choice((count, rng.randint(1, count)))
        alike = rng.choice((1, 1, 2)) if has_gangs and rng.random() < 0.7 else 0
        for _ in range(count):
            cpu = alike or rng.choice((1, 1, 2, 3, 4))
            arrivals.append(Arrival(namespace, cpu, rng.randint(0, 3), rng.choice((0, 0, 0, 5)), gang))
            left -= cpu
    return Story(root, nodes, arrivals, minimums)


def stories(*, has_guarantees: bool = True, has_gangs: bool = False) -> st.SearchStrategy[Story]:
    seeds = st.integers(0, 2**40)
    return seeds.map(lambda seed: made(seed, has_guarantees=has_guarantees, has_gangs=has_gangs))


def opened(story: Story) -> QuotaCluster:
    cluster = QuotaCluster(
        [make_node(f"n{at}", cpu_milli=cpu * 1000) for at, cpu in enumerate(story.nodes)], story.root
    )
    for (gang, namespace), least in story.minimums.items():
        cluster.set_minimum(gang, namespace, least)
    return cluster


def arrives(cluster: QuotaCluster, number: int, one: Arrival) -> None:
    cluster.add(
        f"p{number}",
        one.namespace,
        one.cpu * 1000,
        memory_bytes=one.memory,
        priority=one.priority,
        gang=one.gang,
    )


def played(story: Story) -> QuotaCluster:
    """Until nothing changes any more."""
    cluster = opened(story)
    for number, one in enumerate(story.arrivals):
        arrives(cluster, number, one)
        if number % 3 == 0:
            cluster.settle()
    cluster.settle()
    return cluster
