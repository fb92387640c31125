"""Needs that slices do not cover, because of which a borrower's pod in another process may not be placed on a lent row. Pure.

A slice has CPU, memory and a number of pods. Two processes that count anything else of a node, or of several nodes, would not see each
other's assumed pods.
"""

from __future__ import annotations

from multisched.model.objects import Pod
from multisched.plugins.loans.terms import SLICED


def unsliced_need(pod: Pod) -> str:
    """Returns the field of the pod that no slice covers, with the reason; empty if there is none."""
    spec = pod.spec
    unsliced = sorted(name for name, amount in pod.requests.items() if amount and name not in SLICED)
    if unsliced:
        return f"it requests {', '.join(unsliced)}; a slice has cpu, memory and pods"
    affinity = spec.pod_affinity
    if affinity is not None and affinity.required:
        return "it has required pod affinity (spec.affinity.podAffinity)"
    if affinity is not None and affinity.anti_required:
        return "it has required pod anti-affinity (spec.affinity.podAntiAffinity)"
    if any(constraint.is_hard for constraint in spec.spread):
        return "it has a topology spread constraint with DoNotSchedule (spec.topologySpreadConstraints)"
    if spec.host_ports:
        return f"it needs host port {spec.host_ports[0].port}"
    if spec.volumes:
        return "it has volumes that are limited or tied to nodes (spec.volumes)"
    if spec.resource_claims:
        return "it has resource claims (spec.resourceClaims)"
    return ""
