"""The order of victims of a reclaim, and pods that could have been reclaimed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from multisched.verify.quota_tree import QuotaTree
from tests.kit.checkers.quota_rules import fault_of_reclaim, single_sufficient_victim
from tests.kit.world.labels import GPU, GPU_DEVICES, GPU_MILLI
from tests.unit.verify.quota_documents import level, tree

NODE = make_node("n", cpu_milli=12_000)
CLAIM = make_pod("claim", cpu_milli=1_000, namespace="c")


def three() -> QuotaTree:
    leaves = [level(name, 4, 12, namespaces=(name,)) for name in ("a", "b", "c")]
    return tree(level("root", 12, 12, *leaves))


def placed_pod(name: str, namespace: str, *, priority: int = 0, started_s: float = 1.0, node: str = "n") -> Pod:
    pod = make_pod(name, cpu_milli=1_000, namespace=namespace, priority=priority, node=node)
    return replace(pod, started_s=started_s)


def many(namespace: str, count: int) -> list[Pod]:
    return [placed_pod(f"{namespace}{number}", namespace) for number in range(count)]


def fault_of(victim: Pod, pods: list[Pod], claim: Pod = CLAIM) -> str:
    return fault_of_reclaim(three(), [(claim, NODE)], [[victim]], pods)


HALF, GIVEN = {GPU_MILLI: "500"}, {GPU_DEVICES: "0"}
A, B = many("a", 7), many("b", 5)


def test_leaf_furthest_over_its_min_loses_pods_first() -> None:
    assert fault_of(A[0], A + B) == ""
    assert fault_of(B[0], A + B) == "b/b0 goes, and not a/a0, whose leaf is further over its min"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (placed_pod("other", "a", priority=-1), "which is less urgent"),
        (placed_pod("other", "a", started_s=2.0), "which is newer"),
        (placed_pod("other", "a", priority=1, started_s=2.0), ""),
        (placed_pod("other", "a", started_s=0.5), ""),
        (placed_pod("other", "a", priority=-1, node="elsewhere"), "which is less urgent"),
        (replace(placed_pod("other", "a", priority=-1), is_deleting=True), ""),
        (replace(placed_pod("other", "a", priority=-1), is_victim=True), ""),
    ],
)
def test_lowest_priority_then_newest_pod_of_a_leaf_is_evicted_first(other: Pod, why: str) -> None:
    pods = [*A, *B[1:], other]

    assert fault_of(A[0], pods) == (f"a/a0 goes, and not a/other, {why}" if why else "")


def test_leaf_of_the_claim_loses_pods_last() -> None:
    own = placed_pod("own", "c", priority=-1)

    assert fault_of(own, [*A, *B[1:], own]) == "c/own goes, and not a/a0, whose leaf is further over its min"
    assert fault_of(A[0], [*A, *B[1:], own]) == ""


def test_pods_that_cannot_be_evicted_do_not_matter_for_the_order() -> None:
    """The leaf b has borrowed nothing."""
    other = placed_pod("other", "b", priority=-1)

    assert fault_of(A[0], [*many("a", 9), *many("b", 2), other]) == ""


def test_borrowing_pod_can_be_evicted_for_an_entitled_one() -> None:
    """The parent level is full, or the node."""
    small = make_node("n", cpu_milli=3_000)

    assert single_sufficient_victim(three(), CLAIM, NODE, [*A, *B]) == "a/a0"
    assert single_sufficient_victim(three(), CLAIM, small, many("a", 3)) == ""
    assert (
        single_sufficient_victim(
            three(), CLAIM, small, [*many("b", 3), *(replace(one, node="m") for one in many("a", 2))]
        )
        == ""
    )
    assert single_sufficient_victim(three(), CLAIM, make_node("n", cpu_milli=5_000), many("a", 5)) == "a/a0"


def test_pod_beyond_its_min_or_that_fits_needs_no_victims() -> None:
    assert single_sufficient_victim(three(), CLAIM, NODE, [*many("a", 7), *many("b", 1), *many("c", 4)]) == ""
    assert single_sufficient_victim(three(), CLAIM, NODE, many("a", 7)) == ""


def test_only_pods_of_a_full_node_are_alternatives() -> None:
    other = placed_pod("other", "a", priority=-1, node="elsewhere")
    small = make_node("n", cpu_milli=6_000)

    assert fault_of_reclaim(three(), [(CLAIM, small)], [[A[0]]], [*A[:6], other]) == ""


def fellow(number: int, cpu: int = 1) -> Pod:
    return make_pod(f"claim{number}", cpu_milli=cpu * 1_000, namespace="c")


def test_reclaim_for_a_gang_is_judged_by_the_sum_of_its_members() -> None:
    claims = [(fellow(0), NODE), (fellow(1), NODE)]

    assert fault_of_reclaim(three(), claims, [[A[0]], [A[1]]], A + B) == ""
    assert "2 pods are evicted for c/claim0; needed: " in fault_of_reclaim(three(), claims[:1], [[A[0]], [A[1]]], A + B)
    assert "do not suffice" in fault_of_reclaim(three(), claims, [[A[0]]], A + B)
    assert "is not entitled" in fault_of_reclaim(three(), [(fellow(0, 3), NODE), (fellow(1, 2), NODE)], [[A[0]]], A + B)


def test_members_of_a_gang_must_fit_together_on_a_node() -> None:
    small, pods = make_node("n", cpu_milli=11_000), [*A[:6], *B]
    claims = [(fellow(0), small), (fellow(1), small)]

    assert "do not suffice" in fault_of_reclaim(three(), claims, [[A[0]]], pods)
    assert fault_of_reclaim(three(), claims, [[A[0]], [A[1]]], pods) == ""


def test_evicted_gang_counts_as_one_victim() -> None:
    assert fault_of_reclaim(three(), [(CLAIM, NODE)], [A], A + B) == ""
    assert "; needed: " in fault_of_reclaim(three(), [(CLAIM, NODE)], [A, [B[0]]], A + B)


def test_terminating_pod_is_no_victim_of_the_reclaim() -> None:
    """It may be leaving for a pod without a quota: its room becomes free, and need not be borrowed."""
    going, large = replace(B[0], is_deleting=True), make_pod("claim", cpu_milli=2_000, namespace="c")
    there = [*A, going, *B[1:]]

    assert fault_of_reclaim(three(), [(large, NODE)], [[A[0]], [going]], there) == ""
    assert fault_of_reclaim(three(), [(large, NODE)], [[going]], there) == ""
    assert "2 pods are evicted" in fault_of_reclaim(three(), [(large, NODE)], [[A[0]], [A[1]], [going]], there)
    assert "1 pods are evicted" in fault_of_reclaim(three(), [(CLAIM, NODE)], [[A[0]], [going]], there)


def test_gang_members_are_no_alternatives_to_a_victim() -> None:
    pods = [*A, *B[1:], placed_pod("other", "a", priority=-1)]

    assert fault_of_reclaim(three(), [(CLAIM, NODE)], [[A[0]]], pods, in_gangs={"uid-other"}) == ""


def test_nominated_pods_count_with_their_device_fractions() -> None:
    leaves = [level(name, {GPU: "1"}, {GPU: "2"}, namespaces=(name,)) for name in ("a", "c")]
    quotas = tree(level("root", {GPU: "2"}, {GPU: "2"}, *leaves))
    claim, half = make_pod("claim", namespace="c", annotations=HALF), make_pod("half", namespace="c", annotations=HALF)
    pods = [replace(placed_pod(f"a{number}", "a"), annotations=HALF | GIVEN) for number in range(4)]

    assert fault_of_reclaim(quotas, [(claim, None)], [[pods[0]], [pods[1]]], pods, [(half, NODE)]) == ""
    assert fault_of_reclaim(quotas, [(claim, None)], [[pods[0]]], pods, [(half, NODE)]) == "", "as they are alike"
    urgent = make_pod("half", namespace="c", annotations=HALF, priority=1)
    assert "do not suffice" in fault_of_reclaim(quotas, [(claim, None)], [[pods[0]]], pods, [(urgent, NODE)])
    assert "; needed: " in fault_of_reclaim(quotas, [(claim, None)], [[pods[0]], [pods[1]]], pods)
