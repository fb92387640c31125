"""The service of a pod: the name that identifies its history."""

from __future__ import annotations

import re

from multisched.model.objects import Pod

SERVICE_LABEL = "multisched.io/service"
CLASS_LABEL = "multisched.io/service-class"
"""Names a service whose profile is used while the pod's own service has none."""
NAME_LABELS = ("app", "app.kubernetes.io/name")
_HASH_LABEL = "pod-template-hash"
_CRON_SUFFIX = re.compile(r"-\d{8,11}\Z", re.ASCII)
"""The suffix that the CronJob controller appends to the names of its Jobs: the scheduled time in minutes (or, in old releases, seconds)."""


def service_of(pod: Pod) -> str:
    """Returns the label `multisched.io/service`, else the workload that owns the pod, else its app label, else "".

    A ReplicaSet is reduced to its Deployment and a CronJob's Job to the CronJob, so history survives a rollout.
    """
    named = pod.labels.get(SERVICE_LABEL)
    if named:
        return named
    if pod.owner is not None:
        return _workload(pod)
    return next((pod.labels[key] for key in NAME_LABELS if pod.labels.get(key)), "")


def class_of(pod: Pod) -> str:
    """Returns the label `multisched.io/service-class`, else ""."""
    return pod.labels.get(CLASS_LABEL, "")


def _workload(pod: Pod) -> str:
    assert pod.owner is not None
    name = pod.owner.name
    match pod.owner.kind:
        case "ReplicaSet":
            template_hash = pod.labels.get(_HASH_LABEL)
            return name.removesuffix(f"-{template_hash}") if template_hash else name
        case "Job":
            return _CRON_SUFFIX.sub("", name) or name
        case _:
            return name
