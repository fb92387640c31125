"""Which service a series of history belongs to: `namespace/service`, for pods that are there and pods that are gone.

The first that gives a name counts: the configured label, the pod as the scheduler knows it (`service_of`), its owners
by kube-state-metrics. Then comes the pod's own name without what controllers append. The last is a guess, and counted
as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

PodName = tuple[str, str]
"""(namespace, name)"""


class Naming(Enum):
    """How a series was given its service."""

    LABEL = "label"
    KNOWN_POD = "known pod"
    OWNER = "owner"
    POD_NAME = "pod name"


_SAFE: Final = "[bcdfghjklmnpqrstvwxz2456789]"
"""What Kubernetes makes names of (source: apimachinery util/rand)."""
_APPENDED: Final = (
    re.compile(rf"-\d{{8,11}}(?:-\d+)?-{_SAFE}{{5}}\Z", re.ASCII),
    re.compile(rf"-{_SAFE}{{6,10}}-{_SAFE}{{5}}\Z", re.ASCII),
    re.compile(rf"-\d+(?:-{_SAFE}{{5}})?\Z", re.ASCII),
    re.compile(rf"-{_SAFE}{{5}}\Z", re.ASCII),
)
"""Of a CronJob's Job's pod, a Deployment's, a StatefulSet's (or an indexed Job's), a DaemonSet's or a Job's: the first that fits."""


def stripped(pod: str) -> str:
    """A pod's name without what its controllers appended, as far as that can be known."""
    for pattern in _APPENDED:
        name = pattern.sub("", pod)
        if name != pod and name:
            return name
    return pod


_JOB_TIME: Final = re.compile(r"-\d{8,11}\Z", re.ASCII)
_TEMPLATE_HASH: Final = re.compile(rf"-{_SAFE}{{6,10}}\Z", re.ASCII)


class Owners:
    """Owners by kube-state-metrics. Filled from its series, then read."""

    def __init__(self) -> None:
        self.pods: dict[PodName, tuple[str, str]] = {}
        self.replica_sets: dict[PodName, tuple[str, str]] = {}
        self.jobs: dict[PodName, tuple[str, str]] = {}
        """(namespace, name) -> (kind, name) of the owner."""

    def note(self, table: dict[PodName, tuple[str, str]], label: str, labels: Mapping[str, str]) -> None:
        """One series of kube_*_owner; one that lacks a label tells nothing."""
        key = (labels.get("namespace", ""), labels.get(label, ""))
        owner = (labels.get("owner_kind", ""), labels.get("owner_name", ""))
        if all((*key, *owner)) and owner != ("<none>", "<none>"):
            table[key] = owner

    def service_of(self, pod: PodName) -> str:
        """The workload at the end of the pod's chain of owners; empty where it has none."""
        namespace, _ = pod
        kind, name = self.pods.get(pod, ("", ""))
        if kind == "ReplicaSet":
            above = self.replica_sets.get((namespace, name))
            # Without kube_replicaset_owner: a ReplicaSet is a Deployment's, whose name it begins with.
            return above[1] if above else _TEMPLATE_HASH.sub("", name) or name
        if kind == "Job":
            above = self.jobs.get((namespace, name))
            return above[1] if above else _JOB_TIME.sub("", name) or name
        return name


class ServiceNames:
    """Names series. One for each reading: what it has found out it keeps."""

    def __init__(self, known: Mapping[PodName, str], owners: Owners, service_label: str = "") -> None:
        """`known`: the pods there are -> service, empty for one without. Neither mapping may change any more."""
        self._known = known
        self._owners = owners
        self.service_label = service_label
        self._found: dict[PodName, str] = {}
        self.counts: dict[Naming, int] = dict.fromkeys(Naming, 0)
        """Pods, or for a label series, by how they got their service."""

    def of_pod(self, pod: PodName) -> str:
        """`namespace/service`."""
        found = self._found.get(pod)
        if found is None:
            namespace, name = pod
            found = self._found[pod] = f"{namespace}/{self._service(pod, name)}"
        return found

    def of_label(self, namespace: str, service: str) -> str:
        """Named by its label; `service` alone where the series has no namespace."""
        self.counts[Naming.LABEL] += 1
        return f"{namespace}/{service}" if namespace else service

    def _service(self, pod: PodName, name: str) -> str:
        service, naming = self._known.get(pod, ""), Naming.KNOWN_POD
        if not service:
            service, naming = self._owners.service_of(pod), Naming.OWNER
        if not service:
            service, naming = stripped(name), Naming.POD_NAME
        self.counts[naming] += 1
        return service


class Labels(msgspec.Struct, frozen=True):
    """Which labels of series say what they are about."""

    pod: str = "pod"
    namespace: str = "namespace"
    node: str = ""
    """Empty: the first of NODE_LABELS that a series has."""
    service: str = ""
    """Names the service itself, in place of the pod; empty: services are inferred from pods."""
