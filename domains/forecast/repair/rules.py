"""Rules for pods that must never be moved, by their spec, annotations, node and volumes. The first matching reason is used.

PodDisruptionBudgets, quotas and gangs are not checked here: they are part of the case (`repair/snapshot.py`) and checked
by the planner. Pure. Reasons complete the sentence "it is not moved: ..."; there are few distinct ones. Respected
annotations of other projects: cluster-autoscaler's `safe-to-evict` and `safe-to-evict-local-volumes`, descheduler's
`evict` and `prefer-no-eviction`. Only the value "true" permits a move. Any value other than "true" and "false" forbids
it, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import PersistentVolume
from multisched.model.gang import membership_of
from multisched.model.objects import Node, Owner, Pod, PodSpec
from multisched.model.selectors import NODE_NAME_FIELD

REPAIR_ANNOTATION: Final = "multisched.io/repair"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_VOLUMES: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
EVICT: Final = "descheduler.alpha.kubernetes.io/evict"
PREFER_NO_EVICTION: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
CONSENTS: Final = (REPAIR_ANNOTATION, SAFE_TO_EVICT, EVICT)
"""Annotations with which the author of a pod permits or forbids its eviction."""
MIRROR: Final = "kubernetes.io/config.mirror"
GROUP_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
HOSTNAME: Final = "kubernetes.io/hostname"
CRITICAL_PRIORITY: Final = 2_000_000_000
"""system-cluster-critical."""
GOING_TAINTS: Final = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
SICK_TAINTS: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})

GOING: Final = "it is being deleted"
UNREADABLE: Final = "its spec cannot be read"
UNSUPPORTED: Final = "multisched cannot place it: it has constraints that are not evaluated yet"
NOT_READY: Final = "it is not ready"
STATIC: Final = "it is a static pod of its node"
ALONE: Final = "it has no controller to replace it"
DAEMON: Final = "it belongs to a DaemonSet"
JOB: Final = "it belongs to a Job, which would start again"
FOREIGN: Final = "another scheduler places it (repair.pods: all moves such pods too)"
CRITICAL: Final = "it is critical to the cluster (its priority)"
HOST_PATH: Final = "it uses a hostPath volume"
EMPTY_DIR: Final = "it has local storage (emptyDir)"
LOCAL_VOLUME: Final = "its volume is on its node"
CORDONED: Final = "its node is cordoned or being removed"
NODE_SICK: Final = "its node is not ready"


def forbidden_by(annotation: str) -> str:
    """Returns the reason for an annotation with a value that forbids moves."""
    return f"its annotation {annotation} forbids it"


def unclear_by(annotation: str) -> str:
    """Returns the reason for an annotation with an ambiguous value."""
    return f'its annotation {annotation} is neither "true" nor "false"'


def why_fixed(pod: Pod, node: Node, objects: ObjectsView, ours: frozenset[str] | None) -> str:
    """Returns why the pod must not move; empty if it may. `ours`: schedulers whose pods may be moved; None: all."""
    return (
        _by_state(pod)
        or _by_owner(pod.owner, pod.annotations)
        or ("" if ours is None or pod.spec.scheduler_name in ours else FOREIGN)
        or _by_annotations(pod.annotations)
        or by_spec(pod.spec, pod.annotations)
        or _by_volumes(pod, objects)
        or by_node(node)
    )


def group_of(pod: Pod) -> str:
    """Returns the name of the pod's gang; empty if it has none."""
    membership = membership_of(pod)
    if membership is not None and membership.name:
        return membership.name
    for annotation in GROUP_ANNOTATIONS:
        if pod.annotations.get(annotation):
            return pod.annotations[annotation]
    return ""


def _by_state(pod: Pod) -> str:
    if pod.is_leaving or pod.is_preempted:
        return GOING
    if pod.malformed:
        return UNREADABLE
    if pod.spec.unsupported:
        return UNSUPPORTED
    return "" if pod.is_ready else NOT_READY


def _by_owner(owner: Owner | None, annotations: Mapping[str, str]) -> str:
    if MIRROR in annotations or (owner is not None and owner.kind == "Node"):
        return STATIC
    if owner is None:
        return ALONE
    return {"DaemonSet": DAEMON, "Job": JOB}.get(owner.kind, "")


def _by_annotations(annotations: Mapping[str, str]) -> str:
    for name in CONSENTS:
        value = annotations.get(name)
        if value == "false":
            return forbidden_by(name)
        if value not in (None, "true"):
            return unclear_by(name)
    if annotations.get(PREFER_NO_EVICTION, "false") != "false":
        return forbidden_by(PREFER_NO_EVICTION)
    return ""


def by_spec(spec: PodSpec, annotations: Mapping[str, str]) -> str:
    """Checks priority and local storage. An annotation that permits eviction also permits it despite local storage."""
    if spec.priority >= CRITICAL_PRIORITY:
        return CRITICAL
    if not spec.local_volumes or any(annotations.get(name) == "true" for name in CONSENTS):
        return ""
    safe = {name.strip() for name in annotations.get(SAFE_VOLUMES, "").split(",")}
    unsafe = [volume for volume in spec.local_volumes if volume.name not in safe]
    if any(volume.is_host_path for volume in unsafe):
        return HOST_PATH
    return EMPTY_DIR if unsafe else ""


def _by_volumes(pod: Pod, objects: ObjectsView) -> str:
    for one in pod.spec.volumes:
        name = one.claim_of(pod.name)
        claim = objects.claim(pod.namespace, name) if name else None
        volume = objects.volume(claim.volume) if claim is not None and claim.volume else None
        if volume is not None and _is_on_one_node(volume):
            return LOCAL_VOLUME
    return ""


def _is_on_one_node(volume: PersistentVolume) -> bool:
    """Reports whether the volume is bound to nodes by name; zones and driver-specific topology are left to the filters."""
    terms = () if volume.node_affinity is None else volume.node_affinity.terms
    return bool(terms) and all(
        any(one.key in (HOSTNAME, NODE_NAME_FIELD) for one in (*term.expressions, *term.fields)) for term in terms
    )


def by_node(node: Node) -> str:
    """Checks whether the node is cordoned, being removed or not ready."""
    taints = {taint.key for taint in node.taints}
    if node.is_unschedulable or taints & GOING_TAINTS:
        return CORDONED
    return NODE_SICK if taints & SICK_TAINTS else ""
