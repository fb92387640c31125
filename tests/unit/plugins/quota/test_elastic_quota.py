"""ElasticQuota in real cycles: the examples of three manuals, and what a pod is told that its quota holds."""

from __future__ import annotations

from msgspec.structs import replace

from multisched.cycle.effort import Effort
from multisched.cycle.preemption.group_trial import GroupOfPods
from multisched.cycle.preemption.victim_units import run_unpaused
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.step_budget import UNLIMITED
from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.testing.builders import make_node
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node


def cpus(count: int) -> int:
    return count * 1000


def test_ack_example_ends_with_two_pods_per_namespace() -> None:
    """Source: the walk-through of ACK's manual: 4, then 4/4, then 3/3/2, then 2/2/2/2."""
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(56), memory_bytes=2**40)], acks_example())
    seen = []
    for number in range(1, 5):
        for replica in range(5):
            cluster.add(f"d{number}-{replica}", f"namespace{number}", cpus(5))
        cluster.settle()
        seen.append([cluster.running().get(f"namespace{at}", 0) for at in range(1, number + 1)])
    assert seen == [[4], [4, 4], [3, 3, 2], [2, 2, 2, 2]]
    assert cluster.settle() == 0
    assert len(cluster.evicted) == 4


def test_pending_pod_names_the_limiting_level_with_numbers() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(56), memory_bytes=2**40)], acks_example())
    for replica in range(5):
        cluster.add(f"d1-{replica}", "namespace1", cpus(5))
    cluster.settle()
    (pod,) = cluster.pending.values()
    result = cluster.attempt(pod)
    assert isinstance(result, Unplaced)
    assert result.message == (
        "0/1 nodes are available: quota root.a.1: cpu 20 used, 5 requested, max 20. "
        "reclaim: the quota would exceed its min and can borrow only idle capacity"
    )
    assert result.condition_reason == "QuotaExceeded"
    assert result.rejectors == {"ElasticQuota"}


def two(first: tuple[int, int], second: tuple[int, int], whole: int) -> Json:
    return node("root", {"cpu": whole}, {"cpu": whole}, leaf("q1", *first), leaf("q2", *second))


def test_volcano_example_reaches_a_fixed_point() -> None:
    """volcano#4947: Q1 deserves 3 and runs a pod of 4; Q2 deserves 5, runs 1 and waits with 4. There they evict each other for ever."""
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((3, 8), (5, 8), 8))
    cluster.add("big", "q1", cpus(4), node="n")
    cluster.add("small", "q2", cpus(1), node="n")
    cluster.add("other", "q1", cpus(3), node="n")
    cluster.add("wants", "q2", cpus(4))
    rounds = cluster.settle()
    assert rounds <= 3
    assert len(cluster.evicted) == 1
    assert cluster.ledger.levels[2].used["cpu"] == cpus(5)


def test_raised_koordinator_min_is_reclaimed() -> None:
    """koordinator#2393: after min is raised its pods get what they are sure of, and no pod within its min is ever taken."""
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(16))], two((8, 16), (8, 16), 16))
    for number in range(16):
        cluster.add(f"a{number}", "q1", cpus(1))
    cluster.settle()
    cluster.set_tree(two((4, 16), (12, 16), 16))
    for number in range(16):
        cluster.add(f"b{number}", "q2", cpus(1))
    cluster.settle()
    assert cluster.running() == {"q1": 4, "q2": 12}


def test_pod_without_a_quota_is_not_limited() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((1, 1), (1, 1), 2))
    assert isinstance(cluster.attempt(cluster.add("free", "elsewhere", cpus(4))), Placed)
    assert isinstance(cluster.attempt(cluster.add("held", "q1", cpus(4))), Unplaced)


def test_no_use_is_counted_without_a_tree() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], None)
    cluster.attempt(cluster.add("p", "q1", cpus(4)))
    assert cluster.ledger.held() == {}


def test_tree_added_later_counts_placed_pods() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], None)
    cluster.attempt(cluster.add("p", "q1", cpus(4)))
    cluster.set_tree(two((4, 4), (4, 4), 8))
    assert isinstance(cluster.attempt(cluster.add("late", "q1", cpus(1))), Unplaced)
    cluster.check()


def test_invalid_tree_keeps_the_last_good_one_and_evicts_no_pod() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((4, 4), (4, 4), 8))
    for number in range(4):
        cluster.attempt(cluster.add(f"p{number}", "q1", cpus(1)))
    cluster.set_tree(two((9, 4), (4, 4), 8))
    assert isinstance(cluster.attempt(cluster.add("more", "q1", cpus(1))), Unplaced)
    assert isinstance(cluster.attempt(cluster.add("other", "q2", cpus(1))), Placed)
    assert cluster.evicted == []


def test_tree_in_force_stays_in_force_when_another_is_added() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((4, 4), (4, 4), 8))
    cluster.attempt(cluster.add("p", "q1", cpus(1)))
    cluster.set_tree(two((1, 1), (1, 1), 2), name="another", uid="uid-another")
    assert isinstance(cluster.attempt(cluster.add("q", "q1", cpus(1))), Placed)


def test_higher_priority_borrower_is_evicted_and_stays_pending() -> None:
    """Its replacement, more important than the pod that reclaims, finds neither the quota's room nor the node's."""
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((4, 8), (4, 8), 16))
    for number in range(8):
        cluster.add(f"a{number}", "q1", cpus(1), priority=100)
    cluster.settle()
    cluster.add("b", "q2", cpus(2), priority=-5)
    cluster.settle()
    assert cluster.running() == {"q1": 6, "q2": 1}
    assert cluster.taker_of == ["b"]


def test_priority_decides_within_a_quota_at_its_max() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((2, 2), (2, 2), 4))
    for number in range(2):
        cluster.attempt(cluster.add(f"low{number}", "q1", cpus(1)))
    cluster.add("high", "q1", cpus(1), priority=9)
    cluster.settle()
    assert cluster.evicted == [("low1",)]


def test_pod_within_its_min_is_not_preempted_by_another_quota() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(4))], two((2, 4), (2, 4), 4))
    for number in range(2):
        cluster.attempt(cluster.add(f"a{number}", "q1", cpus(1)))
        cluster.attempt(cluster.add(f"b{number}", "q2", cpus(1)))
    cluster.add("urgent", "q1", cpus(3), priority=1000)
    cluster.settle()
    assert cluster.running() == {"q1": 2, "q2": 2}
    assert cluster.evicted == []


def test_scheduler_plugins_quotas_lend_and_reclaim() -> None:
    """The example of its manual: quota2 borrows up to its max while quota1 idles, and no more than all min together is used."""
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(16))], None)
    cluster.put(flat("one", 4, 6), flat("two", 4, 6))
    for number in range(8):
        cluster.add(f"two-{number}", "two", cpus(1))
    cluster.settle()
    assert cluster.running() == {"two": 6}
    for number in range(4):
        cluster.add(f"one-{number}", "one", cpus(1))
    cluster.settle()
    assert cluster.running() == {"one": 4, "two": 4}
    assert len(cluster.evicted) == 2


def test_koordinator_label_determines_lender_and_borrower() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(6))], None)
    cluster.put(linked("batch", 2, 6, namespaces=["shared"]), linked("web", 4, 6, namespaces=["shared"]))
    web = {POD_LABEL: "web"}
    for number in range(6):
        cluster.add(f"batch-{number}", "shared", cpus(1))
    cluster.settle()
    for number in range(5):
        cluster.add(f"web-{number}", "shared", cpus(1), labels=web)
    cluster.settle()
    used = {level.path.rpartition(".")[2]: level.used["cpu"] for level in cluster.ledger.levels}
    assert used == {"koordinator-root-quota": cpus(6), "batch": cpus(2), "web": cpus(4)}
    assert all(name.startswith("batch") for names in cluster.evicted for name in names)


def test_nominated_pod_is_not_blocked_by_its_own_nomination() -> None:
    nodes = [make_node(name, cpu_milli=cpus(2)) for name in ("full", "free")]
    cluster = QuotaCluster(nodes, two((1, 1), (1, 1), 2))
    cluster.add("first", "elsewhere", cpus(2), node="full")
    like, nominated = cluster.add("like", "q1", cpus(1)), cluster.add("nominated", "q1", cpus(1))
    cluster.domain.nominator.nominate(nominated, "full")
    cluster.domain.cycle.classes.find(like, 1)  # the answer is kept for both

    assert isinstance(cluster.attempt(nominated), Placed)


def test_nominated_amounts_stay_with_their_quota_when_the_tree_changes() -> None:
    """The quotas change places in the tree."""
    cluster = QuotaCluster(
        [make_node("n", cpu_milli=cpus(8))], node("root", {}, {}, leaf("q1", 0, 4), leaf("q2", 0, 4))
    )
    cluster.domain.nominator.nominate(cluster.add("nominated", "q2", cpus(4)), "n")
    assert isinstance(cluster.attempt(cluster.add("before", "q1", cpus(1))), Placed)
    cluster.set_tree(node("root", {}, {}, leaf("q2", 0, 4), leaf("q1", 0, 4)))
    assert isinstance(cluster.attempt(cluster.add("after", "q1", cpus(1))), Placed)
    assert isinstance(cluster.attempt(cluster.add("other", "q2", cpus(1))), Unplaced)


def test_guaranteed_quota_is_available_at_once() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], None)
    cluster.put(
        linked("company", 8, 8, is_parent="true"),
        linked("kept", 3, 8, "company", namespaces=["kept"], allow_lent_resource="false"),
        linked("other", 2, 8, "company", namespaces=["other"]),
    )
    for number in range(8):
        cluster.add(f"other-{number}", "other", cpus(1))
    cluster.settle()
    assert cluster.running() == {"other": 5}
    for number in range(3):
        cluster.add(f"kept-{number}", "kept", cpus(1))
    cluster.settle()
    assert cluster.running() == {"kept": 3, "other": 5}
    assert cluster.evicted == []


def test_guaranteed_amount_nominated_to_a_pod_is_kept_for_it() -> None:
    """Both would count on the same idle guarantee, and displace each other for ever."""
    kept = {"attributes": {GUARANTEE_ATTRIBUTE: "all"}}
    tree = node("root", {"cpu": 6}, {"cpu": 6}, leaf("a", 1, 2), leaf("b", 4, 6, **kept))
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(9))], tree)
    for name, namespace, cpu, priority in (
        ("a0", "a", 1, 0), ("a1", "a", 1, 0), ("b0", "b", 1, 0), ("b1", "b", 1, 0), ("b2", "b", 1, 0),
        ("large", "b", 2, 0), ("urgent", "b", 2, 5),
    ):  # fmt: skip
        cluster.add(name, namespace, cpus(cpu), priority=priority)
    cluster.settle()
    assert len(cluster.evicted) == 1
    assert cluster.ledger.levels[2].used["cpu"] == cpus(4)


def test_linked_gangs_of_a_quota_do_not_preempt_by_priority() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], two((0, 8), (8, 8), 8))
    for number in range(4):
        cluster.add(f"sure-{number}", "q2", cpus(2), node="n")
    for number in range(2):
        cluster.add(f"gang-{number}", "q1", cpus(2), priority=9)
    after = run_unpaused(
        cluster.domain.cycle.group_post_filters.run(
            GroupOfPods("q1/gang", tuple(cluster.pending.values())), Effort(UNLIMITED)
        )
    )
    assert (after.preemption, after.sentence) == (
        None,
        "reclaim: the quota would exceed its min and can borrow only idle capacity",
    )


def test_pod_assumed_on_a_deleting_node_leaves_its_quota_to_reclaim() -> None:
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("taker", 2, 4), leaf("far", 0, 4))
    cluster = QuotaCluster([make_node("n", cpu_milli=cpus(8))], root)
    for name in ("f0", "f1", "f2"):
        cluster.add(name, "far", cpus(1), node="n")
    going, cache = cluster.add("going", "far", cpus(1)), cluster.domain.cache
    cache.assume(going, 0)
    cache.revise(replace(going, is_deleting=True))
    assert list(cluster.ledger.terminating) == [going.uid]
    result = cluster.attempt(cluster.add("t", "taker", cpus(1)))
    assert isinstance(result, Unplaced)
    assert (result.preemption, result.nominated_node) == (None, "n"), "nobody else has to go"
