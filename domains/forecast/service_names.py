"""The service of a series of history, as `namespace/service`, for existing and deleted pods.

The first of these that yields a name is used: the configured label; the pod in the scheduler's cache (`service_of`);
its owners by kube-state-metrics; the pod's name without the suffixes that controllers append. The last one is a guess
and is counted as such.
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
    """How the service of a series was found."""

    LABEL = "label"
    KNOWN_POD = "known pod"
    OWNER = "owner"
    POD_NAME = "pod name"


_SAFE: Final = "[bcdfghjklmnpqrstvwxz2456789]"
"""Characters of generated name suffixes. Source: apimachinery util/rand."""
_APPENDED: Final = (
    re.compile(rf"-\d{{8,11}}(?:-\d+)?-{_SAFE}{{5}}\Z", re.ASCII),
    re.compile(rf"-{_SAFE}{{6,10}}-{_SAFE}{{5}}\Z", re.ASCII),
    re.compile(rf"-\d+(?:-{_SAFE}{{5}})?\Z", re.ASCII),
    re.compile(rf"-{_SAFE}{{5}}\Z", re.ASCII),
)
"""Suffixes of pod names, tried in order: CronJob; Deployment; StatefulSet or indexed Job; DaemonSet or Job."""


def stripped(pod: str) -> str:
    """Returns a pod's name without the suffixes that controllers append; unchanged if no known pattern matches."""
    for pattern in _APPENDED:
        name = pattern.sub("", pod)
        if name != pod and name:
            return name
    return pod


_JOB_TIME: Final = re.compile(r"-\d{8,11}\Z", re.ASCII)
_TEMPLATE_HASH: Final = re.compile(rf"-{_SAFE}{{6,10}}\Z", re.ASCII)


class Owners:
    """Owners of pods, ReplicaSets and Jobs according to kube-state-metrics. Filled from its series, then only read."""

    def __init__(self) -> None:
        self.pods: dict[PodName, tuple[str, str]] = {}
        self.replica_sets: dict[PodName, tuple[str, str]] = {}
        self.jobs: dict[PodName, tuple[str, str]] = {}
        """(namespace, name) -> (kind, name) of the owner."""

    def note(self, table: dict[PodName, tuple[str, str]], label: str, labels: Mapping[str, str]) -> None:
        """Records one series of kube_*_owner; ignores a series that lacks a label."""
        key = (labels.get("namespace", ""), labels.get(label, ""))
        owner = (labels.get("owner_kind", ""), labels.get("owner_name", ""))
        if all((*key, *owner)) and owner != ("<none>", "<none>"):
            table[key] = owner

    def service_of(self, pod: PodName) -> str:
        """Returns the workload at the end of the pod's owner chain; empty if the pod has no known owner."""
        namespace, _ = pod
        kind, name = self.pods.get(pod, ("", ""))
        if kind == "ReplicaSet":
            above = self.replica_sets.get((namespace, name))
            # Without kube_replicaset_owner: assume a Deployment, whose name is the ReplicaSet's without the hash.
            return above[1] if above else _TEMPLATE_HASH.sub("", name) or name
        if kind == "Job":
            above = self.jobs.get((namespace, name))
            return above[1] if above else _JOB_TIME.sub("", name) or name
        return name


class ServiceNames:
    """Maps series to services, with a cache. Created for each reading."""

    def __init__(self, known: Mapping[PodName, str], owners: Owners, service_label: str = "") -> None:
        """`known`: existing pods -> service, or "" for a pod without one. Neither `known` nor `owners` may change afterwards."""
        self._known = known
        self._owners = owners
        self.service_label = service_label
        self._found: dict[PodName, str] = {}
        self.counts: dict[Naming, int] = dict.fromkeys(Naming, 0)
        """Number of pods (for LABEL: of series) by how their service was found."""

    def of_pod(self, pod: PodName) -> str:
        """Returns `namespace/service` of a pod."""
        found = self._found.get(pod)
        if found is None:
            namespace, name = pod
            found = self._found[pod] = f"{namespace}/{self._service(pod, name)}"
        return found

    def of_label(self, namespace: str, service: str) -> str:
        """Returns `namespace/service` from the labels of a series; `service` alone if it has no namespace."""
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
    """Names of the labels that identify pod, node and service of a series."""

    pod: str = "pod"
    namespace: str = "namespace"
    node: str = ""
    """If empty, the first of NODE_LABELS that a series has is used."""
    service: str = ""
    """The label with the service itself; if empty, services are inferred from pods."""
