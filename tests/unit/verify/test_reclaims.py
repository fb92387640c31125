"""What the judge says of reclaims: who may, from whom, how much, and that none undoes another."""

from __future__ import annotations

import pytest

from multisched.verify.quota_tree import Usage
from multisched.verify.reclaims import QuotaClaim, ReclaimHistory, Victim, may_be_reclaimed, reclaim_faults
from tests.unit.verify.quota_documents import cpus, level, manual, tree


def victims(namespace: str, *sizes: int, gang: str = "") -> list[Victim]:
    return [Victim(f"{namespace}/v{number}", namespace, cpus(size), gang) for number, size in enumerate(sizes)]


def usage(**pods: list[int]) -> Usage:
    """Namespace -> CPUs of its pods, in the tree of the manual."""
    return tree(manual()).usage((namespace, cpus(size)) for namespace, sizes in pods.items() for size in sizes)


def claim(namespace: str, size: int = 5) -> QuotaClaim:
    return QuotaClaim(f"{namespace}/claim", namespace, cpus(size))


FULL = {"namespace1": [5] * 4, "namespace2": [5] * 4}


def test_the_reclaims_of_the_manual_are_right() -> None:
    state = usage(**FULL)

    assert not reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    state.add("namespace1", cpus(5), -1)
    state.add("namespace3", cpus(5))
    assert not reclaim_faults(state, claim("namespace3"), victims("namespace2", 5))


def test_nobody_reclaims_beyond_its_min() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[5] * 2, namespace3=[5] * 2)

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["namespace3/claim is not entitled to more in root.b.1, and takes namespace1/v0"]


def test_a_leaf_that_has_borrowed_nothing_gives_nothing() -> None:
    state = usage(namespace1=[5, 5], namespace2=[5] * 4, namespace4=[10])

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["namespace1/v0 is evicted for namespace3/claim, but root.a.1 has borrowed none of its resources"]


def test_a_pod_is_borrowed_as_a_whole_and_the_last_one_that_is_goes_last() -> None:
    state = usage(namespace1=[6, 6, 1], namespace2=[5] * 4, namespace4=[7])

    assert not reclaim_faults(state, claim("namespace3"), victims("namespace1", 6))
    assert not reclaim_faults(state, claim("namespace3", 7), victims("namespace1", 6, 1))
    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 6, 6))
    assert "namespace1/v1 is evicted for namespace3/claim, but root.a.1 has borrowed none of its resources" in found


def test_levels_above_the_leaves_count_too() -> None:
    """root.a has borrowed nothing: its leaf has, from the other leaf of root.a alone."""
    state = usage(namespace1=[5] * 4, namespace4=[5] * 3)

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["namespace1/v0 is evicted for namespace3/claim, but root.a.1 has borrowed none of its resources"]


def test_whoever_shares_a_level_with_the_victim_needs_not_stay_within_that_levels_min() -> None:
    state = usage(namespace1=[5] * 4, namespace3=[5] * 4)
    state.add("namespace2", cpus(1), 1)
    state.add("namespace3", cpus(1), -1)

    assert not reclaim_faults(state, claim("namespace2"), victims("namespace1", 5))


def test_who_goes_is_not_entitled_to_come_back() -> None:
    """A leaf under its min of CPU takes from one that has borrowed memory alone, for a pod that wants memory too."""
    leaves = (
        level("a", {"cpu": "4", "memory": "4"}, {"cpu": "8", "memory": "8"}, namespaces=("a",)),
        level("b", {"cpu": "4", "memory": "4"}, {"cpu": "8", "memory": "8"}, namespaces=("b",)),
    )
    both = {"cpu": "8", "memory": "8"}
    state = tree(level("root", both, both, *leaves)).usage(
        [("a", {"cpu": 2000, "memory": 6}), ("b", {"cpu": 4000, "memory": 2})]
    )

    found = reclaim_faults(
        state, QuotaClaim("a/c", "a", {"cpu": 2000}), [Victim("b/v", "b", {"cpu": 4000, "memory": 2})]
    )

    assert "b/v is evicted for a/c, but root.b has borrowed none of its resources" in found
    assert "b/v is evicted for a/c, but is entitled to come back for it" in found


def test_who_goes_may_be_entitled_to_come_back_where_the_other_leaf_could_give_nothing() -> None:
    """With what it takes that leaf has its min, and no more."""
    leaves = [level(name, 4, 8, namespaces=(name,)) for name in "ab"]
    state = tree(level("root", 8, 8, *leaves)).usage([("a", cpus(2)), ("b", cpus(4))])

    for size, is_said in ((2, False), (3, True)):
        found = reclaim_faults(state, QuotaClaim("a/c", "a", cpus(size)), [Victim("b/v", "b", cpus(4))])
        assert ("b/v is evicted for a/c, but is entitled to come back for it" in found) is is_said


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((5,), []),
        ((5, 5), ["2 pods are evicted for namespace3/claim; needed: namespace1/v0"]),
        ((2, 5), ["2 pods are evicted for namespace3/claim; needed: namespace1/v1"]),
        ((2, 3), []),
    ],
)
def test_a_proper_subset_does_not_do(sizes: tuple[int, ...], said: list[str]) -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert reclaim_faults(state, claim("namespace3"), victims("namespace1", *sizes)) == said


def test_nobody_goes_in_vain() -> None:
    state = usage(namespace1=[4] * 5, namespace2=[5] * 4)

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 4))
    without_a_node = reclaim_faults(state, claim("namespace3", 4), victims("namespace1", 4), lambda gone: False)

    assert found == ["evictions of 1 pods for namespace3/claim do not suffice: root holds 41000 of at most 40000 cpu"]
    assert without_a_node == ["evictions of 1 pods for namespace3/claim do not suffice: there is no room for it"]


def test_nobody_goes_where_there_is_room() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[1])

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["1 pods are evicted for namespace3/claim; needed: nobody"]


def test_who_goes_for_room_on_a_node_is_needed() -> None:
    state, going = usage(namespace1=[5] * 4, namespace2=[1]), victims("namespace1", 5)

    assert not reclaim_faults(state, claim("namespace3"), going, suffices=lambda some: len(some) == 1)


def test_a_gang_goes_whole() -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert not reclaim_faults(state, claim("namespace3"), victims("namespace1", 3, 3, 4, gang="g"))
    assert reclaim_faults(state, claim("namespace3"), victims("namespace1", 3, 3, 4))


def test_of_very_many_victims_each_is_needed() -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert not reclaim_faults(state, claim("namespace3", 10), victims("namespace1", *[1] * 10))
    assert reclaim_faults(state, claim("namespace3", 9), victims("namespace2", *[1] * 10))
    many = [Victim(f"namespace1/w{number}", "namespace1", {"cpu": 500}) for number in range(12)]
    assert reclaim_faults(state, claim("namespace3"), many)


def test_pods_of_its_own_leaf_are_no_matter_of_reclaims() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[5] * 4)

    assert not reclaim_faults(state, claim("namespace1"), victims("namespace1", 5))


def test_all_that_has_been_borrowed_may_be_reclaimed() -> None:
    state = usage(**FULL)
    standing = [Victim(f"{space}/{n}", space, cpus(5)) for space in FULL for n in range(4)]

    going = may_be_reclaimed(state, claim("namespace3"), standing)

    assert sorted(victim.key for victim in going) == ["namespace1/0", "namespace1/1", "namespace2/0", "namespace2/1"]
    assert not may_be_reclaimed(state, claim("namespace3", 11), standing)
    assert not may_be_reclaimed(state, claim("namespace1"), standing[:4])


def test_what_was_reclaimed_is_not_reclaimed_back() -> None:
    history = ReclaimHistory()

    assert not history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})
    assert not history.reclaimed("a", "b", QuotaClaim("a/2", "a", cpus(5)), {})
    assert not history.reclaimed("c", "b", QuotaClaim("c/1", "c", cpus(5)), {})
    assert not history.reclaimed("b", "b", QuotaClaim("b/0", "b", cpus(5)), {})
    assert (
        history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})
        == "b reclaims from a for b/1, which undoes the reclaim for a/2"
    )


def test_a_leaf_reclaims_up_to_its_min_what_others_borrowed_after_a_large_victim() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {**cpus(7), "memory": -1, "gpu": 0})

    assert history.reclaimed("b", "a", QuotaClaim("b/0", "b", {**cpus(1), "gpu": 1}), {})
    history.changed()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {**cpus(7), "memory": -1, "gpu": 0})
    assert not history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})
    assert history.reclaimed("b", "a", QuotaClaim("b/2", "b", cpus(5)), {})


def test_after_news_it_may_be() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})

    history.changed()

    assert not history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})


def test_the_replacement_of_a_victim_is_no_news() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})
    history.evicted("b/team")
    history.arrived("b/team")

    assert history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})

    history.arrived("b/team")
    assert not history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})


def test_a_pod_that_nobody_replaces_is_news() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})
    history.evicted("")
    history.arrived("")

    assert not history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})
