"""The served kinds: names, scope, verbs, selectable fields and subresources of each.

Contains the table of built-in kinds; `Catalog` also has the kinds of CustomResourceDefinitions. All generic code (routing,
discovery, OpenAPI, RBAC names) reads these definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any

Document = dict[str, Any]
FieldReader = Callable[[Document], Sequence[str]]

STORED_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_NO_FIELDS: Sequence[str] = ()


def _no_fields(_document: Document) -> Sequence[str]:
    return _NO_FIELDS


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource of an object, e.g. `status`, or `scale` of kind autoscaling/v1 Scale."""

    name: str
    verbs: tuple[str, ...] = ("get", "patch", "update")
    kind: str = ""
    group: str = ""
    version: str = ""


STATUS = Subresource("status")
SCALE = Subresource("scale", kind="Scale", group="autoscaling", version="v1")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind in one group and version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = STORED_VERBS
    subresources: tuple[Subresource, ...] = ()
    selectable: tuple[str, ...] = ()
    read_fields: FieldReader = _no_fields
    storage: str = ""
    """Storage key; kinds that are two views of the same objects (core and events.k8s.io Event) share it."""
    has_generation: bool = False
    is_custom: bool = False
    has_siblings: bool = False
    """The same objects are also served in other versions of the kind."""
    spec_key: str = "spec"
    schema: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)
    columns: tuple[Mapping[str, Any], ...] = field(default=(), hash=False, compare=False)

    @property
    def storage_key(self) -> str:
        """Returns the storage key: `pods`, `leases.coordination.k8s.io`."""
        return self.storage or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def api_version(self) -> str:
        """Returns the apiVersion: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_api_version(self) -> str:
        """Returns the apiVersion in which objects are stored."""
        return "v1" if self.storage_key == "events" else self.api_version

    @property
    def refusal_group(self) -> str:
        """Returns the group named in error messages; for both versions of events the core group."""
        return "" if self.storage_key == "events" else self.group

    @property
    def one(self) -> str:
        """Returns the singular name."""
        return self.singular or self.kind.lower()

    def subresource(self, name: str) -> Subresource | None:
        """Returns the subresource with this name; None if there is none."""
        return next((entry for entry in self.subresources if entry.name == name), None)

    @property
    def has_status(self) -> bool:
        """Reports whether the kind has a `/status` subresource."""
        return self.subresource("status") is not None

    @property
    def is_stored(self) -> bool:
        """Reports whether objects are stored; False for reviews."""
        return "list" in self.verbs


POD_FIELDS = (
    "spec.nodeName",
    "spec.schedulerName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)


def pod_fields(pod: Document) -> tuple[str, ...]:
    """Returns the values of POD_FIELDS. Interns all except podIP, since there are few distinct values."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    return (
        intern(spec.get("nodeName") or ""),
        intern(spec.get("schedulerName") or ""),
        intern(spec.get("restartPolicy") or ""),
        intern(spec.get("serviceAccountName") or ""),
        "true" if spec.get("hostNetwork") else "false",
        intern(status.get("phase") or ""),
        status.get("podIP") or "",
        intern(status.get("nominatedNodeName") or ""),
    )


def _reader(paths: Sequence[str]) -> FieldReader:
    split = [path.split(".") for path in paths]

    def read(document: Document) -> tuple[str, ...]:
        return tuple(_text(document, path) for path in split)

    return read


def _text(document: Any, path: Sequence[str]) -> str:
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    if document is None:
        return ""
    if isinstance(document, bool):
        return "true" if document else "false"
    return intern(document) if isinstance(document, str) else str(document)


EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)


def _event_fields(event: Document) -> tuple[str, ...]:
    about = event.get("involvedObject") or {}
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    return (
        *(str(about.get(path.rpartition(".")[2]) or "") for path in EVENT_FIELDS[:7]),
        event.get("reason") or "",
        event.get("reportingComponent") or "",
        source,
        event.get("type") or "",
    )


def selectable_fields(*paths: str) -> dict[str, Any]:
    """Returns the Resource arguments for field selectors on plain paths, e.g. `spec.type`."""
    return {"selectable": paths, "read_fields": _reader(paths)}


_POD_SUBRESOURCES = (
    STATUS,
    Subresource("binding", ("create",), "Binding"),
    Subresource("eviction", ("create",), "Eviction", "policy", "v1"),
    Subresource("ephemeralcontainers"),
    Subresource("resize"),
)


def _core() -> Iterator[Resource]:
    yield Resource("", "v1", "bindings", "Binding", verbs=("create",))
    yield Resource("", "v1", "configmaps", "ConfigMap", short_names=("cm",))
    yield Resource("", "v1", "endpoints", "Endpoints", singular="endpoints", short_names=("ep",))
    yield Resource(
        "",
        "v1",
        "events",
        "Event",
        short_names=("ev",),
        storage="events",
        selectable=EVENT_FIELDS,
        read_fields=_event_fields,
    )
    yield Resource("", "v1", "limitranges", "LimitRange", short_names=("limits",))
    yield Resource(
        "", "v1", "namespaces", "Namespace", False, short_names=("ns",),
        verbs=tuple(verb for verb in STORED_VERBS if verb != "deletecollection"),
        subresources=(STATUS, Subresource("finalize", ("update",))), **selectable_fields("status.phase"),
    )  # fmt: skip
    yield Resource(
        "",
        "v1",
        "nodes",
        "Node",
        False,
        short_names=("no",),
        subresources=(STATUS,),
        **selectable_fields("spec.unschedulable"),
    )
    yield Resource(
        "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), subresources=(STATUS,)
    )
    yield Resource(
        "", "v1", "persistentvolumes", "PersistentVolume", False, short_names=("pv",), subresources=(STATUS,)
    )
    yield Resource(
        "", "v1", "pods", "Pod", short_names=("po",), categories=("all",), subresources=_POD_SUBRESOURCES,
        selectable=POD_FIELDS, read_fields=pod_fields, has_generation=True,
    )  # fmt: skip
    yield Resource("", "v1", "podtemplates", "PodTemplate", has_generation=True)
    yield Resource(
        "", "v1", "replicationcontrollers", "ReplicationController", short_names=("rc",), categories=("all",),
        subresources=(SCALE, STATUS), has_generation=True, **selectable_fields("status.replicas"),
    )  # fmt: skip
    yield Resource("", "v1", "resourcequotas", "ResourceQuota", short_names=("quota",), subresources=(STATUS,))
    yield Resource("", "v1", "secrets", "Secret", **selectable_fields("type"))
    token = Subresource("token", ("create",), "TokenRequest", "authentication.k8s.io", "v1")
    yield Resource("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), subresources=(token,))
    yield Resource(
        "", "v1", "services", "Service", short_names=("svc",), categories=("all",), subresources=(STATUS,),
        **selectable_fields("spec.clusterIP", "spec.type"),
    )  # fmt: skip


def _workloads() -> Iterator[Resource]:
    everywhere, scaled = ("all",), (SCALE, STATUS)
    yield Resource("apps", "v1", "controllerrevisions", "ControllerRevision", spec_key="data")
    yield Resource(
        "apps",
        "v1",
        "daemonsets",
        "DaemonSet",
        True,
        "",
        ("ds",),
        everywhere,
        subresources=(STATUS,),
        has_generation=True,
    )
    yield Resource(
        "apps",
        "v1",
        "deployments",
        "Deployment",
        True,
        "",
        ("deploy",),
        everywhere,
        subresources=scaled,
        has_generation=True,
    )
    yield Resource(
        "apps", "v1", "replicasets", "ReplicaSet", True, "", ("rs",), everywhere, subresources=scaled, has_generation=True,
        **selectable_fields("status.replicas"),
    )  # fmt: skip
    yield Resource(
        "apps",
        "v1",
        "statefulsets",
        "StatefulSet",
        True,
        "",
        ("sts",),
        everywhere,
        subresources=scaled,
        has_generation=True,
    )
    yield Resource(
        "batch", "v1", "cronjobs", "CronJob", True, "", ("cj",), everywhere, subresources=(STATUS,), has_generation=True
    )
    yield Resource(
        "batch", "v1", "jobs", "Job", True, "", (), everywhere, subresources=(STATUS,), has_generation=True,
        **selectable_fields("status.successful"),
    )  # fmt: skip
    yield Resource(
        "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, "", ("hpa",), everywhere,
        subresources=(STATUS,),
    )  # fmt: skip
    yield Resource(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, "", ("pdb",), subresources=(STATUS,),
        has_generation=True,
    )  # fmt: skip


def _cluster_wide() -> Iterator[Resource]:
    yield Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, "", ("pc",), spec_key="")
    storage = "storage.k8s.io"
    yield Resource(storage, "v1", "csidrivers", "CSIDriver", False)
    yield Resource(storage, "v1", "csinodes", "CSINode", False)
    yield Resource(storage, "v1", "csistoragecapacities", "CSIStorageCapacity")
    yield Resource(storage, "v1", "storageclasses", "StorageClass", False, "", ("sc",))
    yield Resource(storage, "v1", "volumeattachments", "VolumeAttachment", False, subresources=(STATUS,))
    yield Resource("coordination.k8s.io", "v1", "leases", "Lease")
    yield Resource(
        "events.k8s.io", "v1", "events", "Event", short_names=("ev",), storage="events", selectable=EVENT_FIELDS,
        read_fields=_event_fields,
    )  # fmt: skip
    yield Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", has_generation=True)
    yield Resource(
        "networking.k8s.io",
        "v1",
        "ingresses",
        "Ingress",
        True,
        "",
        ("ing",),
        subresources=(STATUS,),
        has_generation=True,
    )
    yield Resource(
        "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, "", ("netpol",), has_generation=True
    )
    rbac = "rbac.authorization.k8s.io"
    yield Resource(rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
    yield Resource(rbac, "v1", "clusterroles", "ClusterRole", False)
    yield Resource(rbac, "v1", "rolebindings", "RoleBinding")
    yield Resource(rbac, "v1", "roles", "Role")
    yield Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, "",
        ("crd", "crds"), ("api-extensions",), subresources=(STATUS,), has_generation=True,
    )  # fmt: skip
    dra = "resource.k8s.io"
    yield Resource(dra, "v1", "deviceclasses", "DeviceClass", False, has_generation=True)
    yield Resource(dra, "v1", "resourceclaims", "ResourceClaim", subresources=(STATUS,))
    yield Resource(dra, "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
    yield Resource(
        dra,
        "v1",
        "resourceslices",
        "ResourceSlice",
        False,
        has_generation=True,
        **selectable_fields("spec.nodeName", "spec.driver"),
    )
    admission, category = "admissionregistration.k8s.io", ("api-extensions",)
    for plural, kind in (
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ):
        below = (STATUS,) if plural == "validatingadmissionpolicies" else ()
        yield Resource(admission, "v1", plural, kind, False, "", (), category, subresources=below, has_generation=True)


def _reviews() -> Iterator[Resource]:
    only_create = ("create",)
    authn, authz = "authentication.k8s.io", "authorization.k8s.io"
    yield Resource(authn, "v1", "selfsubjectreviews", "SelfSubjectReview", False, verbs=only_create)
    yield Resource(authn, "v1", "tokenreviews", "TokenReview", False, verbs=only_create)
    yield Resource(authz, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=only_create)
    yield Resource(authz, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=only_create)
    yield Resource(authz, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, verbs=only_create)
    yield Resource(authz, "v1", "subjectaccessreviews", "SubjectAccessReview", False, verbs=only_create)


class Catalog:
    """Finds kinds by path: built-in kinds, and those that CRDs add and remove."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self.revision = 0
        """Incremented by every change; caches of discovery and OpenAPI depend on it."""
        for resource in (*_core(), *_workloads(), *_cluster_wide(), *_reviews()):
            self.add(resource)

    def add(self, resource: Resource) -> None:
        """Adds or replaces a kind."""
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self.revision += 1

    def remove(self, resource: Resource) -> None:
        """Removes a kind."""
        self._by_path.pop((resource.group, resource.version, resource.plural), None)
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Returns the kind of a path; None if it is not served."""
        return self._by_path.get((group, version, plural))

    def __iter__(self) -> Iterator[Resource]:
        return iter(tuple(self._by_path.values()))

    def groups(self) -> Mapping[str, Mapping[str, Iterable[Resource]]]:
        """Returns group → version → kinds, in the order in which they were added."""
        found: dict[str, dict[str, list[Resource]]] = {}
        for resource in self:
            found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        return found
