"""Reclaiming over random trees, pods, gangs and arrivals: no gang below its minimum, nobody goes in vain, and nothing is undone.

Judged by `multisched.verify` and by counting members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings

from multisched.cycle.results import Unplaced
from multisched.framework.preemption import Preemption
from multisched.model.objects import PODS, Pod
from multisched.verify.quota_tree import QuotaTree, Usage, read_tree
from multisched.verify.reclaims import QuotaClaim, Victim, reclaim_faults
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.stories import Story, arrives, made, opened, played, stories

EXAMPLES = settings().max_examples // 5
"""Each plays a whole story, half a second long."""
GANGS = stories(has_guarantees=False, has_gangs=True)


def story_of(seed: int) -> Story:
    return made(seed, has_guarantees=False, has_gangs=True)


class Taken(NamedTuple):
    """A reclaim, before it is carried out, while nobody else is nominated."""

    cluster: QuotaCluster
    claimants: tuple[Pod, ...]
    preemption: Preemption

    @property
    def victims(self) -> list[Pod]:
        return [pod for pod in self.preemption.every_victim if not pod.is_deleting]

    def units(self) -> list[list[Pod]]:
        """Each victim alone, but those of a gang that goes whole together."""
        roster, units = self.cluster.domain.cache.gangs, dict[str, list[Pod]]()
        for pod in self.victims:
            key = roster.key_of(pod.uid)
            is_whole = key is not None and set(roster.placed_members(key)) <= {one.uid for one in self.victims}
            units.setdefault(key if is_whole and key is not None else pod.uid, []).append(pod)
        return list(units.values())


def reclaims(story: Story) -> Iterator[Taken]:
    cluster = opened(story)
    for number, one in enumerate(story.arrivals):
        arrives(cluster, number, one)
        for _ in range(3):
            for key in cluster.waiting_gangs():
                result = cluster.decided_gang(key)
                for placed in result.placed:
                    cluster.domain.cache.forget(placed.pod.uid)
                found = next((one.preemption for one in result.unplaced if one.preemption is not None), None)
                if found is not None and not len(cluster.domain.nominator):
                    yield Taken(cluster, tuple(pod for pod, _ in found.nominations), found)
                cluster.attempt_gang(key)
            for pod in cluster.waiting_singly():
                if pod.uid not in cluster.pending:
                    continue
                decided = cluster.domain.schedule(pod)
                cluster.domain.cache.forget(pod.uid)
                single = decided.preemption if isinstance(decided, Unplaced) else None
                if single is not None and not len(cluster.domain.nominator):
                    yield Taken(cluster, (pod,), single)
                cluster.attempt(pod)


def test_generated_histories_contain_claiming_and_evicted_gangs() -> None:
    """Else the properties below would say nothing."""
    found = dict.fromkeys(("claimed by a gang", "of whole gangs", "of members alone"), 0)
    for seed in range(10, 50):
        for taken in reclaims(story_of(seed)):
            found["claimed by a gang"] += len(taken.claimants) > 1
            found["of whole gangs"] += any(len(unit) > 1 for unit in taken.units())
            found["of members alone"] += any(pod.labels for unit in taken.units() for pod in unit if len(unit) == 1)
        if min(found.values()) >= 3:
            return
    pytest.fail(f"too few reclaims in 40 stories: {found}")


@example(story_of(534))  # a member of higher priority comes late to a gang that uses all of its quota
@given(GANGS)
@settings(max_examples=EXAMPLES)
def test_histories_end_and_no_gang_is_placed_below_its_minimum(story: Story) -> None:
    """`QuotaCluster.check` says so after each attempt, and that no level is over its max."""
    assert played(story).settle() == 0


@given(GANGS)
@settings(max_examples=EXAMPLES)
def test_reclaims_of_gangs_are_whole_minimal_and_final(story: Story) -> None:
    """A story takes half a second: each of its reclaims is put to all properties."""
    tree = tree_of(story)
    for taken in reclaims(story):
        check_members_left(taken)
        check_judge_agrees(tree, taken)
        check_nobody_comes_back(tree, taken)


def check_members_left(taken: Taken) -> None:
    """A gang loses only its surplus, or all members."""
    roster = taken.cluster.domain.cache.gangs
    going = Counter(key for pod in taken.preemption.every_victim if (key := roster.key_of(pod.uid)) is not None)
    for key, count in going.items():
        gang = roster.gang(key)
        assert gang is not None
        assert gang.spec is not None
        left = len(gang.members) - sum(not one.node for one in gang.members.values()) - count
        assert left >= gang.spec.min_members or left == 0, f"{left} of {key} would stand"


def check_judge_agrees(tree: QuotaTree, taken: Taken) -> None:
    """The reclaim passes the judge, and its units are minimal."""
    usage = usage_of(tree, taken.cluster)
    claim = QuotaClaim("claim", taken.claimants[0].namespace, together(taken.claimants))
    victims = [
        Victim(pod.key, pod.namespace, amounts(pod), f"unit {number}" if len(unit) > 1 else "")
        for number, unit in enumerate(taken.units())
        for pod in unit
    ]
    suffices = Rooms(taken).suffice
    assert suffices(victims), "they make room on nodes"
    assert reclaim_faults(usage, claim, victims, suffices) == []


def check_nobody_comes_back(tree: QuotaTree, taken: Taken) -> None:
    """Evicted gangs and pods could not reclaim again."""
    after = usage_of(tree, taken.cluster, without=taken.victims)
    after.add(taken.claimants[0].namespace, together(taken.claimants))
    for unit in taken.units():
        if unit[0].namespace == taken.claimants[0].namespace:
            continue
        roster = taken.cluster.domain.cache.gangs
        key = roster.key_of(unit[0].uid)
        least = len(unit) - roster.surplus(key) if key is not None and len(unit) > 1 else 1
        for some in combinations(unit, max(least, 1)):
            assert not after.is_entitled(unit[0].namespace, together(some)), f"{unit[0].name} would come back"


class Rooms:
    """Free CPUs of each node, for claimants that are to have room beside whoever stays."""

    def __init__(self, taken: Taken) -> None:
        self._town = taken.cluster
        self._nodes = {pod.uid: node for pod, node in taken.preemption.nominations}
        self._claimants = taken.claimants
        self._are_alike = len({pod.requests["cpu"] for pod in taken.claimants}) == 1

    def suffice(self, going: Collection[Victim]) -> bool:
        """Single pods on the node that they are nominated to; gangs of equal pods wherever there is room, of others there, too."""
        keys = {one.key for one in going}
        table = self._town.domain.cache.nodes
        free = {
            node.name: node.allocatable["cpu"]
            - sum(pod.requests["cpu"] for pod in table.pods_on(row) if pod.key not in keys and not pod.is_deleting)
            for row, node in table.live_rows()
        }
        size = self._claimants[0].requests["cpu"]
        if len(self._claimants) > 1 and self._are_alike:
            return sum(max(left, 0) // size for left in free.values()) >= len(self._claimants)
        for pod in self._claimants:
            free[self._nodes[pod.uid]] -= pod.requests["cpu"]
        return min(free[node] for node in self._nodes.values()) >= 0


def tree_of(story: Story) -> QuotaTree:
    return read_tree({"metadata": {"name": "tree", "namespace": "kube-system"}, "spec": {"root": story.root}})


def usage_of(tree: QuotaTree, cluster: QuotaCluster, without: Iterable[Pod] = ()) -> Usage:
    gone = {pod.uid for pod in without}
    standing = (entry.pod for entry in cluster.domain.cache if entry.pod.uid not in gone)
    return tree.usage((pod.namespace, amounts(pod)) for pod in standing)


def amounts(pod: Pod) -> dict[str, int]:
    return {**pod.requests, PODS: 1}


def together(pods: Sequence[Pod]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for pod in pods:
        found.update(amounts(pod))
    return dict(found)
