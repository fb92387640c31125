"""Which service a pod belongs to: the name under which history knows it."""

from __future__ import annotations

import re

from multisched.model.objects import Pod

SERVICE_LABEL = "multisched.io/service"
CLASS_LABEL = "multisched.io/service-class"
"""Names the service whose profile stands in as long as the pod's own is not known."""
NAME_LABELS = ("app", "app.kubernetes.io/name")
_HASH_LABEL = "pod-template-hash"
_CRON_SUFFIX = re.compile(r"-\d{8,11}\Z", re.ASCII)
"""What the CronJob controller appends to its Jobs: the scheduled time in minutes (or, in old releases, seconds)."""


def service_of(pod: Pod) -> str:
    """The label `multisched.io/service`, else the workload that owns the pod, else its app label; empty if it has none.

    A ReplicaSet stands for its Deployment and a CronJob's Job for the CronJob, so that a release keeps its history.
    """
    named = pod.labels.get(SERVICE_LABEL)
    if named:
        return named
    if pod.owner is not None:
        return _workload(pod)
    return next((pod.labels[key] for key in NAME_LABELS if pod.labels.get(key)), "")


def class_of(pod: Pod) -> str:
    """What the label `multisched.io/service-class` says; empty without one."""
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
