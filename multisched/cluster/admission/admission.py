"""Built-in admission: completes or rejects an object, depending on other objects of the cluster.

Reads namespaces, nodes, priority classes, limit ranges and storage classes; changes only the given document. The order is
kube-apiserver's: namespace lifecycle, limit ranges, priority, default tolerations, storage, then pod status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from multisched.cluster.admission import storage_rules
from multisched.cluster.admission.label_keys import merge_label_keys
from multisched.cluster.base import errors, quantities
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.base.storage import Store

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
EVICTION_DELAY_S = 300
SYSTEM_PRIORITY = 2_000_000_000
"""The lowest priority of a system priority class."""

TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
STORAGE_CLASSES = "storageclasses.storage.k8s.io"


def _toleration(key: str) -> Document:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_DELAY_S}


class Admission:
    """Admits creates and updates, given the other objects of the cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._classes_at = -1
        self._classes: dict[str, Document] = {}
        self._default_class: Document | None = None
        self._namespaces_at = -1
        self._terminating: frozenset[str] = frozenset()

    def admit_create(self, resource: Resource, document: Document, namespace: str, now: str) -> None:
        """Completes a new object, or raises ApiError."""
        if namespace:
            self.admit_namespace(resource, document, namespace)
        storage = resource.storage_key
        if storage == "pods":
            self._admit_pod(resource, document, namespace, now)
        elif storage == "jobs.batch":
            label_job(document)
        elif storage == PRIORITY_CLASSES:
            self._admit_priority_class(document)
        elif storage == "namespaces":
            _complete_namespace(document)
        else:
            self._admit_storage(storage, document, now)

    def admit_update(self, resource: Resource, document: Document) -> None:
        """Completes a changed object: adds default tolerations again if they were removed."""
        if resource.storage_key == "pods":
            _default_tolerations(document["spec"])

    def topology_labels(self, node: str) -> Mapping[str, str]:
        """Returns the labels that a pod gets from the node to which it is bound (feature PodTopologyLabels, enabled since 1.35)."""
        stored = self._store.collection("nodes").objects.get(node)
        labels = {} if stored is None else stored.labels
        return {key: labels[key] for key in TOPOLOGY_LABELS if key in labels}

    # -- namespaces ----------------------------------------------------------------------------------------------

    def admit_namespace(self, resource: Resource, document: Document, namespace: str) -> None:
        """Raises 404 if the namespace does not exist, 403 if it is terminating."""
        namespaces = self._store.collection("namespaces")
        if namespace not in namespaces.objects:
            raise errors.not_found("", "namespaces", namespace)
        if self._namespaces_at != namespaces.changed_at:
            self._namespaces_at = namespaces.changed_at
            self._terminating = frozenset(
                key for key, stored in namespaces.objects.items() if stored.fields and stored.fields[0] == "Terminating"
            )
        if namespace in self._terminating:
            name = document["metadata"].get("name", "")
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            refusal = errors.forbidden(resource.refusal_group, resource.plural, name, why)
            refusal.status["details"]["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise refusal

    # -- storage -------------------------------------------------------------------------------------------------

    def _admit_storage(self, storage: str, document: Document, now: str) -> None:
        storage_rules.protect(storage, document)
        if storage == "persistentvolumeclaims":
            classes = self._store.collection(STORAGE_CLASSES).objects.values()
            storage_rules.take_default_class(document, (stored.document() for stored in classes))
        elif storage == "persistentvolumes":
            document["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}

    # -- pods ----------------------------------------------------------------------------------------------------

    def _admit_pod(self, resource: Resource, pod: Document, namespace: str, now: str) -> None:
        spec = pod["spec"]
        if self._store.collection("limitranges").objects:
            self._apply_limit_ranges(resource, pod, namespace)
        self._resolve_priority(resource, pod)
        _default_tolerations(spec)
        merge_label_keys(pod)
        topology = self.topology_labels(str(spec.get("nodeName") or ""))
        if topology:
            pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **topology}
        status: Document = {"phase": "Pending"}
        if spec.get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": now,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        status["qosClass"] = qos_class(spec)
        pod["status"] = status

    def _priority_classes(self) -> Mapping[str, Document]:
        collection = self._store.collection(PRIORITY_CLASSES)
        if self._classes_at != collection.changed_at:
            self._classes_at = collection.changed_at
            self._classes = {key: stored.document() for key, stored in collection.objects.items()}
            defaults = [entry for entry in self._classes.values() if entry.get("globalDefault")]
            # Two defaults can exist for a moment; upstream uses the one with the smallest value.
            self._default_class = min(defaults, key=lambda entry: int(entry["value"]), default=None)
        return self._classes

    def _resolve_priority(self, resource: Resource, pod: Document) -> None:
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        classes = self._priority_classes()
        chosen = classes.get(name) if name else self._default_class
        if name and chosen is None:
            why = f"no PriorityClass with name {name} was found"
            raise errors.forbidden(resource.refusal_group, resource.plural, pod["metadata"].get("name", ""), why)
        value, policy = 0, "PreemptLowerPriority"
        if chosen is not None:
            value, policy = int(chosen["value"]), chosen.get("preemptionPolicy") or policy
            spec["priorityClassName"] = chosen["metadata"]["name"]
        given = spec.get("priority")
        if given is not None and given != value:
            why = (
                f"the integer value of priority ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {value} from the given PriorityClass name"
            )
            raise errors.forbidden(resource.refusal_group, resource.plural, pod["metadata"].get("name", ""), why)
        asked = spec.get("preemptionPolicy")
        if asked is not None and asked != policy:
            why = (
                f"the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name"
            )
            raise errors.forbidden(resource.refusal_group, resource.plural, pod["metadata"].get("name", ""), why)
        spec["priority"] = value
        spec["preemptionPolicy"] = policy

    def _admit_priority_class(self, document: Document) -> None:
        self._priority_classes()
        if document.get("globalDefault") and self._default_class is not None:
            other = self._default_class["metadata"]["name"]
            name = document["metadata"].get("name", "")
            if other != name:
                why = f"PriorityClass {other} is already marked as default. Only one default can exist"
                raise errors.forbidden("scheduling.k8s.io", "priorityclasses", name, why)

    # -- limit ranges --------------------------------------------------------------------------------------------

    def _apply_limit_ranges(self, resource: Resource, pod: Document, namespace: str) -> None:
        items = [
            item
            for _key, stored in self._store.collection("limitranges").items(namespace)
            for item in (stored.document().get("spec") or {}).get("limits") or ()
        ]
        if not items:
            return
        spec = pod["spec"]
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        for item in items:
            if item.get("type") == "Container":
                applied = [text for entry in spec.get("containers") or () for text in _container_defaults(entry, item)]
                for entry in spec.get("initContainers") or ():
                    applied += _container_defaults(entry, item, "init container")
                if applied:
                    annotations = pod["metadata"].setdefault("annotations", {})
                    annotations["kubernetes.io/limit-ranger"] = f"LimitRanger plugin set: {'; '.join(applied)}"
        refusals: list[str] = []
        for item in items:
            if item.get("type") == "Container":
                for entry in containers:
                    refusals += _outside(item, entry.get("resources") or {}, "Container")
            elif item.get("type") == "Pod":
                refusals += _outside(item, _pod_totals(spec), "Pod")
        if refusals:
            said = refusals[0] if len(refusals) == 1 else f"[{', '.join(refusals)}]"
            raise errors.forbidden(resource.refusal_group, resource.plural, pod["metadata"].get("name", ""), said)


def _container_defaults(entry: Document, item: Mapping[str, Any], kind: str = "container") -> list[str]:
    """Sets missing requests and limits of the container; returns descriptions of what it set."""
    resources, applied = entry.setdefault("resources", {}), []
    for field, source in (("requests", item.get("defaultRequest")), ("limits", item.get("default"))):
        missing = {name: amount for name, amount in (source or {}).items() if name not in (resources.get(field) or {})}
        if missing:
            resources[field] = {**(resources.get(field) or {}), **missing}
            applied.append(f"{', '.join(sorted(missing))} {field.removesuffix('s')} for {kind} {entry['name']}")
    return applied


def _pod_totals(spec: Document) -> Document:
    totals: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for field, amounts in totals.items():
        exact: dict[str, Fraction] = {}
        for entry in spec.get("containers") or ():
            for name, amount in ((entry.get("resources") or {}).get(field) or {}).items():
                exact[name] = exact.get(name, Fraction(0)) + (quantities.parse(amount) or 0)
        amounts.update({name: f"{int(value * 1000)}m" for name, value in exact.items()})
    return totals


def _outside(item: Mapping[str, Any], resources: Mapping[str, Any], kind: str) -> list[str]:
    """Returns upstream's LimitRanger message for every violated bound."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    found = []
    for name, bound in (item.get("min") or {}).items():
        asked = requests.get(name)
        if asked is None:
            found.append(f"minimum {name} usage per {kind} is {bound}.  No request is specified")
        elif _value(asked) < _value(bound):
            found.append(f"minimum {name} usage per {kind} is {bound}, but request is {asked}")
    for name, bound in (item.get("max") or {}).items():
        limit = limits.get(name)
        if limit is None:
            found.append(f"maximum {name} usage per {kind} is {bound}.  No limit is specified")
        elif _value(limit) > _value(bound):
            found.append(f"maximum {name} usage per {kind} is {bound}, but limit is {limit}")
    for name, bound in (item.get("maxLimitRequestRatio") or {}).items():
        request, limit = _value(requests.get(name) or "0"), _value(limits.get(name) or "0")
        if not request or not limit:
            found.append(
                f"{name} max limit to request ratio per {kind} is {bound}, but no request is specified or request is 0"
            )
        elif limit / request > _value(bound):
            ratio = float(limit / request)
            found.append(f"{name} max limit to request ratio per {kind} is {bound}, but provided ratio is {ratio:f}")
    return found


def _value(amount: Any) -> Fraction:
    return quantities.parse(amount) or Fraction(0)


def _default_tolerations(spec: Document) -> None:
    tolerations = spec.get("tolerations")
    if not tolerations:
        spec["tolerations"] = [_toleration(NOT_READY), _toleration(UNREACHABLE)]
        return
    for key in (NOT_READY, UNREACHABLE):
        if not any(_covers(entry, key) for entry in tolerations):
            tolerations.append(_toleration(key))


def _covers(entry: Mapping[str, Any], key: str) -> bool:
    return entry.get("key", "") in ("", key) and entry.get("effect", "") in ("", "NoExecute")


def qos_class(spec: Mapping[str, Any]) -> str:
    """Returns Guaranteed, Burstable or BestEffort, from cpu and memory. Source: k8s.io/component-helpers qos."""
    level = spec.get("resources") or {}
    if level.get("requests") or level.get("limits"):
        return _qos_of([level])
    containers: Sequence[Mapping[str, Any]] = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return _qos_of([entry.get("resources") or {} for entry in containers])


def _qos_of(all_resources: Sequence[Mapping[str, Any]]) -> str:
    is_guaranteed, is_best_effort = True, True
    requested: dict[str, Fraction] = {}
    limited: dict[str, Fraction] = {}
    for resources in all_resources:
        limits_here = 0
        for name, amount in (resources.get("requests") or {}).items():
            if name in ("cpu", "memory") and _value(amount) > 0:
                is_best_effort = False
                requested[name] = requested.get(name, Fraction(0)) + _value(amount)
        for name, amount in (resources.get("limits") or {}).items():
            if name in ("cpu", "memory") and _value(amount) > 0:
                is_best_effort = False
                limits_here += 1
                limited[name] = limited.get(name, Fraction(0)) + _value(amount)
        is_guaranteed = is_guaranteed and limits_here == 2
    if is_best_effort:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed and requested == limited else "Burstable"


def _complete_namespace(document: Document) -> None:
    spec = document.setdefault("spec", {})
    finalizers = spec.setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    document["status"] = {"phase": "Active"}
    metadata = document["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def label_job(document: Document) -> None:
    """Sets a Job's selector, and the matching labels of its pod template. Source: jobStrategy.generateSelector."""
    spec, metadata = document["spec"], document["metadata"]
    if spec.get("manualSelector"):
        return
    template = spec["template"]
    labels = (template.setdefault("metadata", {}) or {}).get("labels") or {}
    uid, name = metadata["uid"], metadata["name"]
    own = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template["metadata"] = {**(template.get("metadata") or {}), "labels": {**labels, **own}}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
