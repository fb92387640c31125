"""Decodes the terms of gangs in PodGroups of scheduler-plugins, Koordinator, ACK and Kubernetes. See decode_objects.py.

Sources: scheduler-plugins apis/scheduling/v1alpha1/types.go; Koordinator config/crd/bases/scheduling.sigs.k8s.io_podgroups.yaml;
Kubernetes k8s.io/api/scheduling/v1alpha2 (1.36), v1alpha3 and v1beta1 (1.37), types.go.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec

from multisched.model.decode_metadata import WireMetadata
from multisched.model.decode_selectors import Wire
from multisched.model.gang import (
    LEVELS_MAX,
    MEMBERS_MAX,
    TIMEOUT_S,
    GangSpec,
    TopologyLevel,
    with_annotations,
)


class _PodGroupSpec(Wire):
    min_member: int | None = None
    schedule_timeout_seconds: int | None = None


class WirePodGroup(Wire):
    metadata: WireMetadata
    spec: _PodGroupSpec | None = None


class _GangPolicy(Wire):
    min_count: int | None = None


class _SchedulingPolicy(Wire):
    basic: dict[str, msgspec.Raw] | None = None
    gang: _GangPolicy | None = None


class _TopologyConstraint(Wire):
    key: str = ""
    topology_key: str = ""


class _SchedulingConstraints(Wire):
    """The key of each constraint is in `topology_key` in early v1alpha2 objects, in `key` in all later ones."""

    topology: list[_TopologyConstraint] | None = None
    topology_constraints: list[_TopologyConstraint] | None = None


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
    """Decodes a PodGroup of scheduler-plugins."""
    return _terms(wire, is_once=False)


def sigs_terms(wire: WirePodGroup) -> GangTerms:
    """Decodes a PodGroup of Koordinator or ACK. By Koordinator's default, a gang that has started once stays started."""
    return _terms(wire, is_once=True)


def _terms(wire: WirePodGroup, *, is_once: bool) -> GangTerms:
    spec, meta = wire.spec or _PodGroupSpec(), wire.metadata
    least, problem = _count(spec.min_member, "spec.minMember")
    timeout_s = float(spec.schedule_timeout_seconds or TIMEOUT_S)
    if timeout_s < 0:
        problem = problem or f"spec.scheduleTimeoutSeconds is {timeout_s:g}; write seconds, 1 or more"
    bare = GangSpec(least, max(timeout_s, 1.0), is_once=is_once)
    found, wrong = with_annotations(bare, meta.namespace, meta.name, meta.annotations or {})
    return {"spec": None if problem or wrong else found, "problem": problem or wrong}


def _count(least: int | None, field: str) -> tuple[int, str]:
    """Checks a minimum; None means that the field is missing. Returns it with an error message, empty if it is valid."""
    if least is None or not 1 <= least <= MEMBERS_MAX:
        what = "missing" if least is None else least
        return 0, f"{field} is {what}; write how many members start together, 1 to {MEMBERS_MAX}"
    return least, ""


def workload_terms(wire: WireWorkloadGroup) -> GangTerms:
    """Decodes a PodGroup of Kubernetes. With the basic policy each pod may start alone."""
    spec = wire.spec or _WorkloadGroupSpec()
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    constraints = spec.scheduling_constraints or _SchedulingConstraints()
    keys = [one.key or one.topology_key for one in (constraints.topology or constraints.topology_constraints or ())]
    least, problem = (0, "") if gang is None else _count(gang.min_count, "spec.schedulingPolicy.gang.minCount")
    if gang is None and (spec.scheduling_policy is None or spec.scheduling_policy.basic is None):
        problem = "spec.schedulingPolicy has neither basic nor gang; write one of them"
    if len(keys) > LEVELS_MAX or not all(keys):
        problem = (
            problem or f"spec.schedulingConstraints: write the key of each topology constraint, {LEVELS_MAX} at most"
        )
    topology = tuple(TopologyLevel(key, is_required=True) for key in keys)
    return {"spec": None if problem else GangSpec(least, topology=topology), "problem": problem}
