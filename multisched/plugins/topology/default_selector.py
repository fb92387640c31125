"""The selector of what a pod belongs to: its services and its controller. Default spread constraints go by it.

Source: kube-scheduler 1.36, plugins/helper/spread.go, DefaultSelector.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.label_index import LabelIndex
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import ReplicaSet, ReplicationController, Service, StatefulSet
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Owner, Pod
from multisched.model.selectors import LabelSelector, Operator, Requirement

KINDS: Final = (
    ObjectKind.SERVICE,
    ObjectKind.REPLICATION_CONTROLLER,
    ObjectKind.REPLICA_SET,
    ObjectKind.STATEFUL_SET,
)
SELECTING: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)
"""The types of these kinds."""
NAMESPACES_KEPT: Final = 16_384
"""Namespaces whose services are filed by label."""

_CONTROLLERS: Final = {
    ("v1", "ReplicationController"): ObjectKind.REPLICATION_CONTROLLER,
    ("apps/v1", "ReplicaSet"): ObjectKind.REPLICA_SET,
    ("apps/v1", "StatefulSet"): ObjectKind.STATEFUL_SET,
}


class DefaultSelectors:
    """Looks selectors up; services are filed by label, so that a namespace may have thousands."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._services: dict[str, tuple[int, LabelIndex[Service]]] = {}

    def may_have(self, pod: Pod) -> bool:
        """False if the pod can have none: no service in its namespace, and no controller that is looked at."""
        return bool(self._objects.services(pod.namespace)) or kind_of(pod.owner) is not None

    def of(self, pod: Pod) -> LabelSelector | None:
        """What selects the pods it belongs with; None for a pod that belongs to nothing."""
        labels: dict[str, str] = {}
        for service in self._index(pod.namespace).candidates(pod.namespace, pod.labels):
            if service.selector is not None and service.selector.matches(pod.labels):
                labels.update(_pairs(service.selector))
        further: tuple[Requirement, ...] = ()
        kind = kind_of(pod.owner)
        if kind is not None and pod.owner is not None:
            found = self._objects.get(kind, pod.namespace, pod.owner.name)
            if isinstance(found, ReplicationController) and found.selector is not None:
                labels.update(_pairs(found.selector))
            elif isinstance(found, ReplicaSet | StatefulSet) and found.selector is not None:
                further = found.selector.requirements
        equal = (Requirement(key, Operator.IN, (value,)) for key, value in sorted(labels.items()))
        requirements = (*equal, *further)
        return LabelSelector(requirements) if requirements else None

    def versions(self) -> tuple[int, ...]:
        """What an answer of `of` depends on."""
        return self._objects.versions(*KINDS)

    def _index(self, namespace: str) -> LabelIndex[Service]:
        version = self._objects.version(ObjectKind.SERVICE)
        known = self._services.get(namespace)
        if known is not None and known[0] == version:
            return known[1]
        index: LabelIndex[Service] = LabelIndex()
        for service in self._objects.services(namespace):
            if service.selector is not None:
                index.add(service, service.selector, None)
        if len(self._services) >= NAMESPACES_KEPT:
            self._services.clear()
        self._services[namespace] = (version, index)
        return index


def kind_of(owner: Owner | None) -> ObjectKind | None:
    """The kind of a controller that is looked at; None for any other, or none."""
    return None if owner is None else _CONTROLLERS.get((owner.api_version, owner.kind))


def _pairs(selector: LabelSelector) -> dict[str, str]:
    return {requirement.key: requirement.values[0] for requirement in selector.requirements}
