"""The status of PodGroups: phase, counts and a condition, in the form that each API defines.

Pure. Sources: scheduler-plugins apis/scheduling/v1alpha1/types.go and pkg/controllers/podgroup_controller.go, and
k8s.io/api/scheduling of Kubernetes 1.36. Failed members are not counted, since the pod watch excludes failed pods. The
field `failed` is not written.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.gangs import GangCounts
from multisched.framework.object_status import ObjectCondition, ObjectStatus
from multisched.model.object_kinds import ObjectKind

SCHEDULED: Final = "Scheduled"
"""Type of the condition for APIs that define none."""
INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
"""The same in group scheduling.k8s.io."""


def status_of(kind: ObjectKind, namespace: str, uid: str, gang: GangCounts) -> ObjectStatus:
    """Returns the status of the PodGroup with this uid."""
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
    """Returns the phase, named as in the controller of scheduler-plugins."""
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
    waiting_text = f"; {_named(gang)} {waits}" if gang.waiting and not gang.why else ""
    waiting_text += f": {gang.refusal}" if waiting_text and gang.refusal else ""
    return ObjectCondition(kind, "False", reason, gang.why or f"{have}{waiting_text}")


def _named(gang: GangCounts) -> str:
    """Returns the names of some waiting members."""
    *shown, last = gang.waiting
    if len(gang.waiting) == 1:
        return last
    return f"{', '.join(shown)} and others" if len(shown) > 3 else f"{', '.join(shown)} and {last}"
