"""The check of counts of nodes in messages of Events and conditions."""

from __future__ import annotations

import pytest

from tests.kit.checkers.process.events import fault_of_counts

WHOLE = "0/5 nodes are available:"


@pytest.mark.parametrize(
    "message",
    [
        f"{WHOLE} 3 Insufficient cpu, 2 Insufficient nvidia.com/gpu.",
        f"{WHOLE} 5 Insufficient cpu, 5 Too many pods.",
        f"{WHOLE} pod has unbound immediate PersistentVolumeClaims.",
        f"{WHOLE} 5 Insufficient cpu. preemption: {WHOLE} 1 Insufficient cpu, 4 No preemption victims found.",
        "0/0 nodes are available:",
        "something else: 7 of them",
        f"gang a/g: g-1: {WHOLE} quota root.0: cpu 1 used, 200 requested, max 4. reclaim: nobody",
    ],
)
def test_counts_up_to_the_number_of_nodes_are_no_fault(message: str) -> None:
    assert fault_of_counts(message) == ""


@pytest.mark.parametrize(
    "message",
    [
        f"{WHOLE} 6 Insufficient cpu.",
        f"{WHOLE} 1 quota root.0: cpu 1 used, 200 requested, max 4, 6 Insufficient cpu.",
        f"{WHOLE} 5 Insufficient cpu. preemption: {WHOLE} 6 No preemption victims found.",
    ],
)
def test_counts_above_the_number_of_nodes_are_a_fault(message: str) -> None:
    assert "of 5 nodes" in fault_of_counts(message)
