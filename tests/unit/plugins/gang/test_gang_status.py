"""Phases and conditions of PodGroups, from the numbers of their gangs."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.framework.gangs import GangCounts
from multisched.model.object_kinds import ObjectKind
from multisched.plugins.gang.gang_status import phase_of, status_of


def gang(**numbers: Any) -> GangCounts:
    """Three start together; nobody is there unless numbers say so."""
    nobody: dict[str, Any] = {
        "least": 3,
        "present": 0,
        "bound": 0,
        "running": 0,
        "finished": 0,
        "has_started": False,
        "is_overdue": False,
        "refusal": "",
        "problem": "",
        "why": "",
        "waiting": (),
        "owners": (),
        "schedulers": frozenset({"ours"}),
    }
    return GangCounts(**{**nobody, **numbers})


@pytest.mark.parametrize(
    ("numbers", "phase"),
    [
        ({}, "Pending"),
        ({"present": 2}, "Pending"),
        ({"present": 3}, "PreScheduling"),
        ({"present": 3, "bound": 1}, "Scheduling"),
        ({"present": 3, "bound": 3}, "Scheduled"),
        ({"present": 3, "bound": 3, "running": 2}, "Scheduled"),
        ({"present": 3, "bound": 3, "running": 3}, "Running"),
        ({"present": 3, "bound": 2, "running": 2, "finished": 1}, "Running"),
        ({"present": 2, "bound": 2, "running": 2, "has_started": True}, "Unknown"),
        ({"present": 3, "finished": 3, "has_started": True}, "Finished"),
        ({"least": 0, "present": 3}, "Pending"),
        ({"present": 3, "bound": 3, "problem": "PodGroup team/g is missing"}, "Pending"),
    ],
    ids=[
        "nobody",
        "too-few",
        "all-there",
        "one-bound",
        "all-bound",
        "some-run",
        "all-run",
        "one-finished",
        "below-minimum",
        "all-finished",
        "no-minimum",
        "broken",
    ],
)
def test_phase_shows_the_progress_of_the_gang(numbers: dict[str, Any], phase: str) -> None:
    assert phase_of(gang(**numbers)) == phase


@pytest.mark.parametrize(
    ("numbers", "status", "reason", "message"),
    [
        ({"problem": "broken"}, "False", "Broken", "broken"),
        ({"bound": 2, "finished": 1}, "True", "Scheduled", "3 of 3 members that start together have nodes"),
        ({"why": "waits until 3 members are there"}, "False", "MembersMissing", "waits until 3 members are there"),
        ({"why": "2 of 3 members are there", "is_overdue": True}, "False", "TimedOut", "2 of 3 members are there"),
        ({"bound": 4, "finished": 1}, "True", "Scheduled", "5 members have nodes; 3 start together"),
        ({"least": 0, "bound": 2}, "True", "Scheduled", "2 members have nodes; each starts alone"),
        ({"least": 0, "waiting": ("a",)}, "False", "Unschedulable", "no member has a node; a waits"),
        ({"waiting": ("a",)}, "False", "Unschedulable", "0 of 3 members that start together have nodes; a waits"),
        (
            {"bound": 1, "waiting": ("a",), "refusal": "0/4 nodes are available", "is_overdue": True},
            "False",
            "TimedOut",
            "1 of 3 members that start together have nodes; a waits: 0/4 nodes are available",
        ),
        ({"why": "waits", "waiting": ("a",), "refusal": "of old"}, "False", "MembersMissing", "waits"),
        ({"bound": 3, "refusal": "of old"}, "True", "Scheduled", "3 of 3 members that start together have nodes"),
        (
            {"bound": 1, "waiting": ("a", "b")},
            "False",
            "Unschedulable",
            "1 of 3 members that start together have nodes; a and b wait",
        ),
        (
            {"waiting": ("a", "b", "c", "d", "e")},
            "False",
            "Unschedulable",
            "0 of 3 members that start together have nodes; a, b, c, d and others wait",
        ),
    ],
    ids=[
        "broken",
        "scheduled",
        "missing",
        "timed-out",
        "more-than-the-minimum",
        "alone",
        "alone-without-room",
        "one-waits",
        "why-it-waits",
        "an-old-refusal-of-one-that-lacks-members",
        "an-old-refusal-of-one-that-has-started",
        "two-wait",
        "many-wait",
    ],
)
def test_condition_names_what_blocks_the_gang(numbers: dict[str, Any], status: str, reason: str, message: str) -> None:
    (found,) = status_of(ObjectKind.POD_GROUP, "team", "uid", gang(**numbers)).conditions
    assert (found.type, found.status, found.reason, found.message) == ("Scheduled", status, reason, message)


def test_upstream_pod_group_gets_only_its_own_fields() -> None:
    found = status_of(ObjectKind.WORKLOAD_POD_GROUP, "team", "uid", gang(bound=3, present=3))
    assert found.fields == {}
    assert [one.type for one in found.conditions] == ["PodGroupInitiallyScheduled"]


def test_start_is_recorded_once_and_failed_members_are_kept() -> None:
    assert status_of(ObjectKind.POD_GROUP, "team", "uid", gang(present=2)).since == ()
    found = status_of(ObjectKind.POD_GROUP, "team", "uid", gang(present=3, owners=("a", "b")))
    assert found.since == ("scheduleStartTime",)
    assert found.fields["occupiedBy"] == "team/a,team/b"
    assert "failed" not in found.fields
