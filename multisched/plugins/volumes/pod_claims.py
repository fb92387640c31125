"""Refusals and queueing hints about a pod's claims, shared by the volume plugins. Pure functions."""

from __future__ import annotations

from multisched.framework.events import EventObject, Hint
from multisched.model.cluster_objects import PersistentVolumeClaim
from multisched.model.objects import Pod
from multisched.model.volumes import may_name


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def not_its_own(pod: Pod, claim: PersistentVolumeClaim) -> str:
    """Returns why a generic ephemeral volume may not use the claim; empty if the pod owns the claim."""
    if claim.owner is not None and claim.owner.uid == pod.uid:
        return ""
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"


def names_claim(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if it names the added or changed claim."""
    if not isinstance(new, PersistentVolumeClaim) or new.namespace != pod.namespace:
        return Hint.SKIP
    return Hint.QUEUE if any(volume.claim == new.name for volume in pod.spec.volumes) else Hint.SKIP


def may_name_claim(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if it names the claim, or if the claim may be created for its ephemeral volume."""
    if not isinstance(new, PersistentVolumeClaim) or new.namespace != pod.namespace:
        return Hint.SKIP
    return Hint.QUEUE if may_name(pod.spec.volumes, new.name) else Hint.SKIP
