"""The selector derived from a pod's services and controller, used by default spread constraints.

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
"""Maximum number of namespaces with an index of services."""

_CONTROLLERS: Final = {
    ("v1", "ReplicationController"): ObjectKind.REPLICATION_CONTROLLER,
    ("apps/v1", "ReplicaSet"): ObjectKind.REPLICA_SET,
    ("apps/v1", "StatefulSet"): ObjectKind.STATEFUL_SET,
}


class DefaultSelectors:
    """Computes selectors. Services are indexed by label, because a namespace may have thousands."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._services: dict[str, tuple[int, LabelIndex[Service]]] = {}

    def may_have(self, pod: Pod) -> bool:
        """Reports whether the pod can have a selector: its namespace has a service, or it has a supported controller."""
        return bool(self._objects.services(pod.namespace)) or kind_of(pod.owner) is not None

    def of(self, pod: Pod) -> LabelSelector | None:
        """Returns the combined selector of the pod's services and controller; None if there is none."""
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
        """Returns the object versions on which the result of `of` depends."""
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
    """Returns the kind of a supported controller; None for other owners and for none."""
    return None if owner is None else _CONTROLLERS.get((owner.api_version, owner.kind))


def _pairs(selector: LabelSelector) -> dict[str, str]:
    return {requirement.key: requirement.values[0] for requirement in selector.requirements}
