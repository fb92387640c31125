"""Reclaiming over random trees, pods and arrivals: never over a max, never back and forth, nobody entitled waits for a borrower,
and nobody goes in vain."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.cycle.results import Placed, Unplaced
from multisched.model.objects import Pod
from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE
from multisched.plugins.quota.quota_ledger import QUOTA, Level, items_of
from multisched.testing.builders import make_node
from tests.unit.plugins.quota.town import Town
from tests.unit.plugins.quota.trees import Json


@st.composite
def trees(draw: st.DrawFn) -> tuple[Json, list[str]]:
    """One to three groups of one to three leaves, all sizes small; their namespaces."""
    names: list[str] = []

    def kept(least: int) -> Json:
        if not least or draw(st.integers(0, 3)):
            return {}
        return {
            "attributes": {GUARANTEE_ATTRIBUTE: draw(st.sampled_from(["all", f"cpu={draw(st.integers(1, least))}"]))}
        }

    def leaf(at: str) -> Json:
        names.append(at)
        least = draw(st.integers(0, 4))
        bounds = {"min": {"cpu": least}, "max": {"cpu": least + draw(st.integers(0, 6))}}
        return {"name": at, **bounds, "namespaces": [at], **kept(least)}

    def group(at: str) -> Json:
        children = [leaf(f"{at}{number}") for number in range(draw(st.integers(1, 3)))]
        least = sum(child["min"]["cpu"] for child in children) + draw(st.integers(0, 2))
        most = max(least, max(child["max"]["cpu"] for child in children)) + draw(st.integers(0, 3))
        return {"name": at, "min": {"cpu": least}, "max": {"cpu": most}, "children": children, **kept(least)}

    groups = [group("abc"[number]) for number in range(draw(st.integers(1, 3)))]
    whole = sum(one["min"]["cpu"] for one in groups) + draw(st.integers(0, 3))
    whole = max(whole, *(one["max"]["cpu"] for one in groups), 1)
    root = {"name": "root", "min": {"cpu": whole}, "max": {"cpu": whole}, "children": groups}
    return root, names


@st.composite
def stories(draw: st.DrawFn) -> tuple[Json, list[int], list[tuple[str, int, int]]]:
    """A tree, CPUs of nodes, and arrivals (namespace, CPUs, priority)."""
    root, names = draw(trees())
    nodes = draw(st.lists(st.integers(2, 16), min_size=1, max_size=3))
    arrivals = draw(
        st.lists(st.tuples(st.sampled_from(names), st.integers(1, 4), st.sampled_from([0, 0, 5])), max_size=14)
    )
    return root, nodes, arrivals


def played(root: Json, nodes: list[int], arrivals: list[tuple[str, int, int]]) -> Town:
    town = Town([make_node(f"n{at}", cpu_milli=cpu * 1000) for at, cpu in enumerate(nodes)], root)
    for number, (namespace, cpu, priority) in enumerate(arrivals):
        town.add(f"p{number}", namespace, cpu * 1000, priority=priority)
        if number % 3 == 0:
            town.settle()
    town.settle()
    return town


@settings(deadline=None)
@given(stories())
def test_every_story_ends_and_no_level_is_ever_over_its_max(story: Any) -> None:
    town = played(*story)
    assert town.settle() == 0


def within_min(level: Level, used: int, amount: int) -> bool:
    return used + amount <= level.min.get("cpu", 0)


class Plain:
    """The rules once more, in plain arithmetic about CPU, over what stands."""

    def __init__(self, town: Town) -> None:
        self.ledger = town.ledger
        self.town = town
        self.standing = [entry.pod for entry in town.domain.cache]

    def used(self, level: Level, gone: frozenset[str]) -> int:
        return sum(
            dict(items_of(pod))["cpu"]
            for pod in self.standing
            if pod.uid not in gone and level in self.ledger.levels_of(pod)
        )

    def held(self, at: int, gone: frozenset[str], more: tuple[int, int] = (-1, 0)) -> int:
        """What nobody else can have of a level, guarantees below it included. `more`: a leaf, and what is added to it."""
        tree = self.ledger.tree
        assert tree is not None
        below = tree.nodes[at].children
        if not below:
            return self.used(self.ledger.levels[at], gone) + (more[1] if at == more[0] else 0)
        kept = [tree.nodes[child].guarantee.get("cpu", 0) for child in below]
        return sum(max(self.held(child, gone, more), own) for child, own in zip(below, kept, strict=True))

    def entitled(self, pod: Pod, gone: frozenset[str] = frozenset()) -> int:
        count, amount = 0, pod.requests["cpu"]
        for level in self.ledger.levels_of(pod):
            if not within_min(level, self.used(level, gone), amount):
                break
            count += 1
        return count

    def may_go(self, victim: Pod, taker: Pod, gone: frozenset[str]) -> bool:
        theirs, ours = self.ledger.levels_of(victim), self.ledger.levels_of(taker)
        if theirs[0] is ours[0]:
            return victim.spec.priority < taker.spec.priority
        for level in theirs:
            if level in ours:
                return 0 < ours.index(level) <= self.entitled(taker)
            if self.used(level, gone) <= level.min.get("cpu", 0):
                return False
        return False

    def fits(self, taker: Pod, gone: frozenset[str]) -> list[str]:
        """Nodes that would take it once these are gone, if its quota would."""
        amount, levels = taker.requests["cpu"], self.ledger.levels_of(taker)
        for level in levels:
            held = self.held(level.at, gone, (levels[0].at, amount))
            if held > max(level.max.get("cpu", 10**9), self.held(level.at, gone)):
                return []
        table = self.town.domain.cache.nodes
        return [
            node.name
            for row, node in table.live_rows()
            if amount + sum(p.requests["cpu"] for p in table.pods_on(row) if p.uid not in gone)
            <= node.allocatable["cpu"]
        ]


@settings(deadline=None)
@given(stories())
def test_no_entitled_pod_waits_while_one_borrower_could_make_room_for_it(story: Any) -> None:
    town = played(*story)
    plain = Plain(town)
    for pod in town.pending.values():
        assert not plain.fits(pod, frozenset()), f"{pod.name} fits and waits"
        if not plain.entitled(pod):
            continue
        for victim in plain.standing:
            if plain.may_go(victim, pod, frozenset()):
                assert not plain.fits(pod, frozenset({victim.uid})), f"{victim.name} could make room for {pod.name}"


@settings(deadline=None)
@given(stories())
def test_victims_obey_the_rules_suffice_and_none_of_them_goes_in_vain(story: Any) -> None:
    root, nodes, arrivals = story
    town = Town([make_node(f"n{at}", cpu_milli=cpu * 1000) for at, cpu in enumerate(nodes)], root)
    for number, (namespace, cpu, priority) in enumerate(arrivals):
        town.add(f"p{number}", namespace, cpu * 1000, priority=priority)
        for _ in range(3):
            for pod in list(town.pending.values()):
                if pod.uid not in town.pending:
                    continue
                plain = Plain(town)
                result = town.domain.schedule(pod)
                if isinstance(result, Placed):
                    town.domain.cache.forget(pod.uid)
                elif isinstance(result, Unplaced) and result.victims and not len(town.domain.nominator):
                    judge(plain, pod, result)
                town.attempt(pod)


def judge(plain: Plain, pod: Pod, result: Unplaced) -> None:
    victims = list(result.victims)
    gone = frozenset(one.uid for one in victims)
    assert result.nominated_node in plain.fits(pod, gone)
    for one in victims:
        assert result.nominated_node not in plain.fits(pod, gone - {one.uid}), f"{one.name} goes in vain"
    left, taken = list(victims), set[str]()
    while left:
        following = next((one for one in left if plain.may_go(one, pod, frozenset(taken))), None)
        assert following is not None, f"{[one.name for one in left]} may not go for {pod.name}"
        left.remove(following)
        taken.add(following.uid)
    assert result.preemption is None or result.preemption.plugin == QUOTA
