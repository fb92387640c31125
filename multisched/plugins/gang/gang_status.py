"""What stands in the status of PodGroups: phase, counts and a condition, in the terms of each of their APIs.

Pure. Sources: scheduler-plugins apis/scheduling/v1alpha1/types.go and pkg/controllers/podgroup_controller.go, and
k8s.io/api/scheduling of Kubernetes 1.36. Failed members are not counted: no watch here brings pods that have failed. The
field `failed` stays as it stands.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.gangs import GangCounts
from multisched.framework.object_status import ObjectCondition, ObjectStatus
from multisched.model.object_kinds import ObjectKind

SCHEDULED: Final = "Scheduled"
"""Type of the condition, where the API has none of its own."""
INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
"""The same in group scheduling.k8s.io."""


def status_of(kind: ObjectKind, namespace: str, uid: str, gang: GangCounts) -> ObjectStatus:
    """Of the PodGroup of this uid."""
    if kind is ObjectKind.WORKLOAD_POD_GROUP:
        return ObjectStatus(uid, conditions=(_condition(INITIALLY_SCHEDULED, gang),))
    fields: dict[str, object] = {
        "phase": phase_of(gang),
        "scheduled": gang.bound + gang.finished,
        "running": gang.running,
        "succeeded": gang.finished,
    }
    if gang.owners:
        fields["occupiedBy"] = ",".join(f"{namespace}/{owner}" for owner in gang.owners)
    since = ("scheduleStartTime",) if gang.least and gang.present >= gang.least else ()
    return ObjectStatus(uid, fields, (_condition(SCHEDULED, gang),), since)


def phase_of(gang: GangCounts) -> str:
    """As the controller of scheduler-plugins names them."""
    least = gang.least
    if not least or gang.problem:
        return "Pending"
    if gang.finished >= least:
        return "Finished"
    if gang.running + gang.finished >= least:
        return "Running"
    if gang.bound + gang.finished >= least:
        return "Scheduled"
    if gang.has_started:
        return "Unknown"
    if gang.bound:
        return "Scheduling"
    return "PreScheduling" if gang.present >= least else "Pending"


def _condition(kind: str, gang: GangCounts) -> ObjectCondition:
    count = gang.bound + gang.finished
    have = f"{count} of {gang.least} members that start together have nodes"
    if gang.problem:
        return ObjectCondition(kind, "False", "Broken", gang.problem)
    if count > gang.least:
        together = f"{gang.least} start together" if gang.least else "each starts alone"
        return ObjectCondition(kind, "True", SCHEDULED, f"{count} members have nodes; {together}")
    if gang.least and count == gang.least:
        return ObjectCondition(kind, "True", SCHEDULED, have)
    if not gang.least:
        have = "no member has a node"
    reason = "TimedOut" if gang.is_overdue else "Unschedulable" if not gang.why else "MembersMissing"
    waits = "waits" if len(gang.waiting) == 1 else "wait"
    who = f"; {_named(gang)} {waits}" if gang.waiting and not gang.why else ""
    who += f": {gang.refusal}" if who and gang.refusal else ""
    return ObjectCondition(kind, "False", reason, gang.why or f"{have}{who}")


def _named(gang: GangCounts) -> str:
    """Some of those that wait."""
    *shown, last = gang.waiting
    if len(gang.waiting) == 1:
        return last
    return f"{', '.join(shown)} and others" if len(shown) > 3 else f"{', '.join(shown)} and {last}"
