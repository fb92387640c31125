"""What PodGroups say of their gangs, those of scheduler-plugins and those of Kubernetes. See decode_objects.py.

Sources: scheduler-plugins apis/scheduling/v1alpha1/types.go; Kubernetes 1.36 k8s.io/api/scheduling/v1alpha2/types.go.
"""

from __future__ import annotations

from typing import TypedDict

from multisched.model.decode_metadata import WireMetadata
from multisched.model.decode_selectors import Wire
from multisched.model.gang import (
    LEVELS_MAX,
    MEMBERS_MAX,
    TIMEOUT_S,
    GangSpec,
    TopologyLevel,
    topology_of,
)


class _PodGroupSpec(Wire):
    min_member: int = 0
    schedule_timeout_seconds: int | None = None


class WirePodGroup(Wire):
    metadata: WireMetadata
    spec: _PodGroupSpec | None = None


class _GangPolicy(Wire):
    min_count: int = 0


class _SchedulingPolicy(Wire):
    gang: _GangPolicy | None = None


class _TopologyConstraint(Wire):
    key: str = ""


class _SchedulingConstraints(Wire):
    topology: list[_TopologyConstraint] | None = None


class _WorkloadGroupSpec(Wire):
    scheduling_policy: _SchedulingPolicy | None = None
    scheduling_constraints: _SchedulingConstraints | None = None


class WireWorkloadGroup(Wire):
    metadata: WireMetadata
    spec: _WorkloadGroupSpec | None = None


class GangTerms(TypedDict):
    """Fields of `cluster_objects.PodGroup`."""

    spec: GangSpec | None
    problem: str


def terms(wire: WirePodGroup) -> GangTerms:
    """Of a PodGroup of scheduler-plugins."""
    spec = wire.spec or _PodGroupSpec()
    topology, problem = topology_of(wire.metadata.annotations or {})
    if not 1 <= spec.min_member <= MEMBERS_MAX:
        problem = f"spec.minMember is {spec.min_member}; write how many members start together, 1 to {MEMBERS_MAX}"
    timeout_s = float(spec.schedule_timeout_seconds or TIMEOUT_S)
    found = None if problem else GangSpec(spec.min_member, max(timeout_s, 1.0), topology=topology)
    return {"spec": found, "problem": problem}


def workload_terms(wire: WireWorkloadGroup) -> GangTerms:
    """Of a PodGroup of Kubernetes. A policy that asks for nothing together lets each pod start alone."""
    spec = wire.spec or _WorkloadGroupSpec()
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    levels = spec.scheduling_constraints.topology if spec.scheduling_constraints is not None else None
    topology = tuple(TopologyLevel(one.key, is_required=True) for one in (levels or ())[:LEVELS_MAX] if one.key)
    least, problem = 0 if gang is None else gang.min_count, ""
    if gang is not None and not 1 <= least <= MEMBERS_MAX:
        problem = f"spec.schedulingPolicy.gang.minCount is {least}; write 1 to {MEMBERS_MAX}"
    return {"spec": None if problem else GangSpec(least, topology=topology), "problem": problem}
