"""The check of messages about quotas that refuse pods."""

from __future__ import annotations

import pytest

from multisched.model.quota_tree import shown_amount
from multisched.plugins.quota.quota_ledger import QUOTA
from multisched.testing.builders import make_node
from multisched.verify.quota_tree import read_tree
from tests.kit.checkers.quota_messages import bounds_of, fault_of_sentences, without_sentences
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import leaf, node

TREE = node("root", {"cpu": 4, "memory": "4Gi"}, {"cpu": 4, "memory": "4Gi"}, leaf("a", 1, 3), leaf("b", 0, 4))
BOUNDS = bounds_of(read_tree({"spec": {"root": TREE}}))
GANG = "gang a/g: 0 of the 4 members that must start together fit; g-1: 0/26 nodes are available:"


@pytest.mark.parametrize(
    "message",
    [
        f"{GANG} quota root.a: cpu 1 used, 200 requested, max 3. reclaim: evicting pods that borrow would not free enough quota",
        "quota root.b: cpu 3750m used and 250m nominated, 1m requested, max 4",
        "quota root.b: cpu 2 used and 1 nominated and 500m guaranteed to others, 750m requested, max 4.",
        "quota root: memory 4Gi used, 1 requested, max 4Gi.",
        "0/5 nodes are available: 5 Insufficient cpu.",
    ],
)
def test_message_about_a_full_quota_is_no_fault(message: str) -> None:
    assert fault_of_sentences(message, BOUNDS) == ""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"{GANG} quota root.a: cpu 1 used, 2 requested, max 3. reclaim: nobody", "within"),
        ("quota root.b: cpu 2 used and 1 nominated and 500m guaranteed to others, 500m requested, max 4.", "within"),
        ("quota root.a: cpu 1 used, 200 requested, max 4.", "no tree"),
        ("quota root.c: cpu 1 used, 200 requested, max 3.", "no tree"),
        ("quota root.a: memory 1 used, 200Gi requested, max 3.", "no tree"),
        ("quota root.a: cpu 4 used, 1 requested, max 3; quota root.b: cpu 1 used, 1 requested, max 4", "within"),
    ],
)
def test_message_that_no_tree_can_cause_is_a_fault(message: str, why: str) -> None:
    assert why in fault_of_sentences(message, BOUNDS)


def test_quota_message_is_removed_completely_before_other_checks() -> None:
    left = without_sentences(f"{GANG} 1 quota root.a: cpu 1 used, 200 requested, max 3, 2 Insufficient cpu.")
    assert left == f"{GANG} 1 a quota, 2 Insufficient cpu."


def test_message_of_the_quota_ledger_is_recognized() -> None:
    """Otherwise no message would be checked after these change."""
    cluster = QuotaCluster([make_node("n", cpu_milli=9000)], TREE)
    cluster.add("there", "a", 2500, node="n")
    why = cluster.ledger.refusal(cluster.add("late", "a", 1000))
    assert shown_amount("cpu", 2500) in why
    assert without_sentences(why) == "a quota", QUOTA
    assert fault_of_sentences(why, BOUNDS) == ""
    assert "no tree" in fault_of_sentences(why, set())
