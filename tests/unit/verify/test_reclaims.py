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


def test_reclaims_of_the_manual_are_valid() -> None:
    state = usage(**FULL)

    assert not reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    state.add("namespace1", cpus(5), -1)
    state.add("namespace3", cpus(5))
    assert not reclaim_faults(state, claim("namespace3"), victims("namespace2", 5))


def test_leaf_must_not_reclaim_beyond_its_min() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[5] * 2, namespace3=[5] * 2)

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["namespace3/claim is not entitled to more in root.b.1, and takes namespace1/v0"]


def test_leaf_without_borrowed_resources_must_not_lose_pods() -> None:
    state = usage(namespace1=[5, 5], namespace2=[5] * 4, namespace4=[10])

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["namespace1/v0 is evicted for namespace3/claim, but root.a.1 has borrowed none of its resources"]


def test_partly_borrowed_pod_may_be_evicted_only_last() -> None:
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


def test_min_of_a_level_shared_with_the_victim_does_not_limit_reclaim() -> None:
    state = usage(namespace1=[5] * 4, namespace3=[5] * 4)
    state.add("namespace2", cpus(1), 1)
    state.add("namespace3", cpus(1), -1)

    assert not reclaim_faults(state, claim("namespace2"), victims("namespace1", 5))


def test_victim_must_not_be_entitled_to_return() -> None:
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
    assert "b/v is evicted for a/c, but could then reclaim quota from it" in found


def test_victim_may_return_if_the_reclaiming_leaf_stays_within_min() -> None:
    """With what it takes that leaf has its min, and no more."""
    leaves = [level(name, 4, 8, namespaces=(name,)) for name in "ab"]
    state = tree(level("root", 8, 8, *leaves)).usage([("a", cpus(2)), ("b", cpus(4))])

    for size, is_said in ((2, False), (3, True)):
        found = reclaim_faults(state, QuotaClaim("a/c", "a", cpus(size)), [Victim("b/v", "b", cpus(4))])
        assert ("b/v is evicted for a/c, but could then reclaim quota from it" in found) is is_said


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((5,), []),
        ((5, 5), ["2 pods are evicted for namespace3/claim; needed: namespace1/v0"]),
        ((2, 5), ["2 pods are evicted for namespace3/claim; needed: namespace1/v1"]),
        ((2, 3), []),
    ],
)
def test_no_proper_subset_of_the_victims_suffices(sizes: tuple[int, ...], said: list[str]) -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert reclaim_faults(state, claim("namespace3"), victims("namespace1", *sizes)) == said


def test_victims_must_suffice_for_the_claim() -> None:
    state = usage(namespace1=[4] * 5, namespace2=[5] * 4)

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 4))
    without_a_node = reclaim_faults(state, claim("namespace3", 4), victims("namespace1", 4), lambda gone: False)

    assert found == ["evictions of 1 pods for namespace3/claim do not suffice: root holds 41000 of at most 40000 cpu"]
    assert without_a_node == ["evictions of 1 pods for namespace3/claim do not suffice: there is no room for it"]


def test_no_pod_is_evicted_if_the_claim_fits_already() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[1])

    found = reclaim_faults(state, claim("namespace3"), victims("namespace1", 5))

    assert found == ["1 pods are evicted for namespace3/claim; needed: nobody"]


def test_victim_needed_for_node_resources_is_valid() -> None:
    state, going = usage(namespace1=[5] * 4, namespace2=[1]), victims("namespace1", 5)

    assert not reclaim_faults(state, claim("namespace3"), going, suffices=lambda some: len(some) == 1)


def test_gang_is_evicted_as_one_unit() -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert not reclaim_faults(state, claim("namespace3"), victims("namespace1", 3, 3, 4, gang="g"))
    assert reclaim_faults(state, claim("namespace3"), victims("namespace1", 3, 3, 4))


def test_each_of_very_many_victims_is_needed() -> None:
    state = usage(namespace1=[20], namespace2=[20])

    assert not reclaim_faults(state, claim("namespace3", 10), victims("namespace1", *[1] * 10))
    assert reclaim_faults(state, claim("namespace3", 9), victims("namespace2", *[1] * 10))
    many = [Victim(f"namespace1/w{number}", "namespace1", {"cpu": 500}) for number in range(12)]
    assert reclaim_faults(state, claim("namespace3"), many)


def test_victims_of_the_same_leaf_are_not_judged_as_reclaim() -> None:
    state = usage(namespace1=[5] * 4, namespace2=[5] * 4)

    assert not reclaim_faults(state, claim("namespace1"), victims("namespace1", 5))


def test_all_that_has_been_borrowed_may_be_reclaimed() -> None:
    state = usage(**FULL)
    standing = [Victim(f"{space}/{n}", space, cpus(5)) for space in FULL for n in range(4)]

    going = may_be_reclaimed(state, claim("namespace3"), standing)

    assert sorted(victim.key for victim in going) == ["namespace1/0", "namespace1/1", "namespace2/0", "namespace2/1"]
    assert not may_be_reclaimed(state, claim("namespace3", 11), standing)
    assert not may_be_reclaimed(state, claim("namespace1"), standing[:4])


def test_reclaim_must_not_undo_an_earlier_one() -> None:
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


def test_reclaim_may_undo_an_earlier_one_after_a_change() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})

    history.changed()

    assert not history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})


def test_replacement_of_a_victim_is_no_change() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})
    history.evicted("b/team")
    history.arrived("b/team")

    assert history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})

    history.arrived("b/team")
    assert not history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})


def test_pod_that_replaces_no_victim_is_a_change() -> None:
    history = ReclaimHistory()
    history.reclaimed("a", "b", QuotaClaim("a/1", "a", cpus(5)), {})
    history.evicted("")
    history.arrived("")

    assert not history.reclaimed("b", "a", QuotaClaim("b/1", "b", cpus(5)), {})
