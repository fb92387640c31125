"""The initial objects of a new cluster: namespaces, service accounts, system priority classes, standard roles.

`fill` writes them through `Objects` once, when a server starts empty. Every new namespace gets its default service
account immediately; upstream's controller creates it a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from multisched.cluster.api.objects import Objects
from multisched.cluster.base.resources import Catalog, Document, Resource
from multisched.cluster.base.storage import Event

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
RBAC_GROUP = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")
WRITE_STATUS = ("patch", "update")


def _find(catalog: Catalog, group: str, plural: str) -> Resource:
    found = catalog.find(group, "v1", plural)
    assert found is not None
    return found


def fill(objects: Objects, catalog: Catalog) -> None:
    """Writes the initial objects, and makes every new namespace get its default service account."""
    accounts = _find(catalog, "", "serviceaccounts")

    def add_default_account(event: Event) -> None:
        if event.before is None and f"{event.key}/default" not in objects.store.collection("serviceaccounts").objects:
            objects.create(accounts, {"metadata": {"name": "default"}}, event.key)

    objects.on_change["namespaces"] = add_default_account
    for name in NAMESPACES:
        objects.create(_find(catalog, "", "namespaces"), {"metadata": {"name": name}}, "")
    classes, roles = _find(catalog, "scheduling.k8s.io", "priorityclasses"), _find(catalog, RBAC_GROUP, "clusterroles")
    bindings = _find(catalog, RBAC_GROUP, "clusterrolebindings")
    for entry in _priority_classes():
        objects.create(classes, entry, "")
    for role_name, rules in _roles():
        objects.create(roles, {"metadata": _metadata(role_name), "rules": rules}, "")
    for role_name, subjects in _bindings():
        reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role_name}
        objects.create(bindings, {"metadata": _metadata(role_name), "roleRef": reference, "subjects": subjects}, "")


def _metadata(name: str) -> Document:
    return {
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    }


def _priority_classes() -> Iterator[Document]:
    node = "Used for system critical pods that must not be moved from their current node."
    cluster = (
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."
    )
    yield {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000, "description": node}
    yield {"metadata": {"name": "system-cluster-critical"}, "value": 2_000_000_000, "description": cluster}


def rule(groups: Sequence[str], resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Document:
    """Builds a PolicyRule."""
    document: Document = {"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}
    return {**document, "resourceNames": list(names)} if names else document


def _paths(verbs: Sequence[str], paths: Sequence[str]) -> Document:
    return {"verbs": list(verbs), "nonResourceURLs": list(paths)}


_CORE_VIEW = (
    "bindings", "configmaps", "endpoints", "events", "limitranges", "namespaces", "namespaces/status",
    "persistentvolumeclaims", "persistentvolumeclaims/status", "pods", "pods/log", "pods/status", "replicationcontrollers",
    "replicationcontrollers/scale", "replicationcontrollers/status", "resourcequotas", "resourcequotas/status",
    "serviceaccounts", "services", "services/status",
)  # fmt: skip
_CORE_EDIT = (
    "configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "pods/eviction", "replicationcontrollers",
    "replicationcontrollers/scale", "secrets", "serviceaccounts", "serviceaccounts/token", "services",
)  # fmt: skip
_APPS = (
    "controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale",
    "statefulsets", "statefulsets/scale",
)  # fmt: skip
_NETWORK = ("ingresses", "networkpolicies")


def _view_rules(verbs: Sequence[str], core: Sequence[str]) -> list[Document]:
    return [
        rule([""], core, verbs),
        rule(["apps"], _APPS, verbs),
        rule(["batch"], ["cronjobs", "jobs"], verbs),
        rule(["autoscaling"], ["horizontalpodautoscalers"], verbs),
        rule(["policy"], ["poddisruptionbudgets"], verbs),
        rule(["networking.k8s.io"], _NETWORK, verbs),
        rule(["discovery.k8s.io"], ["endpointslices"], verbs),
        rule(["resource.k8s.io"], ["resourceclaims", "resourceclaimtemplates"], verbs),
    ]


def _scheduler_rules() -> list[Document]:
    """Returns the complete role of kube-scheduler 1.36."""
    return [
        rule(["", "events.k8s.io"], ["events"], ["create", "patch", "update"]),
        rule(["coordination.k8s.io"], ["leases"], ["create"]),
        rule(["coordination.k8s.io"], ["leases"], ["get", "list", "update", "watch"], ["kube-scheduler"]),
        rule(["coordination.k8s.io"], ["leasecandidates"], [*WRITE, *READ]),
        rule([""], ["nodes"], READ),
        rule([""], ["pods"], ["delete", *READ]),
        rule([""], ["bindings", "pods/binding"], ["create"]),
        rule([""], ["pods/status"], WRITE_STATUS),
        rule([""], ["replicationcontrollers", "services"], READ),
        rule(["apps", "extensions"], ["replicasets"], READ),
        rule(["apps"], ["statefulsets"], READ),
        rule(["policy"], ["poddisruptionbudgets"], READ),
        rule([""], ["persistentvolumeclaims", "persistentvolumes", "namespaces"], READ),
        rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        rule(["storage.k8s.io"], ["csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"], READ),
        rule(["resource.k8s.io"], ["deviceclasses", "resourceslices"], READ),
        rule(
            ["resource.k8s.io"],
            ["resourceclaims", "resourceclaims/status", "resourceclaims/binding"],
            [*READ, *WRITE_STATUS],
        ),
        rule([""], ["pods/finalizers"], ["update"]),
    ]


def _node_rules() -> list[Document]:
    return [
        rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        rule(["authorization.k8s.io"], ["localsubjectaccessreviews", "subjectaccessreviews"], ["create"]),
        rule([""], ["services"], READ),
        rule([""], ["nodes"], ["create", *READ, *WRITE_STATUS]),
        rule([""], ["nodes/status"], WRITE_STATUS),
        rule(["", "events.k8s.io"], ["events"], ["create", *WRITE_STATUS]),
        rule([""], ["pods"], ["create", "delete", *READ]),
        rule([""], ["pods/status"], WRITE_STATUS),
        rule([""], ["pods/eviction", "serviceaccounts/token"], ["create"]),
        rule([""], ["configmaps", "secrets", "persistentvolumeclaims", "persistentvolumes"], READ),
        rule(["coordination.k8s.io"], ["leases"], ["create", "delete", "get", *WRITE_STATUS]),
        rule(["storage.k8s.io"], ["csinodes"], ["create", "delete", "get", *WRITE_STATUS]),
        rule(["resource.k8s.io"], ["resourceclaims"], ["get"]),
        rule(["resource.k8s.io"], ["resourceslices"], [*READ, *WRITE]),
    ]


def _roles() -> Iterator[tuple[str, list[Document]]]:
    everything = rule(["*"], ["*"], ["*"])
    yield "cluster-admin", [everything, _paths(["*"], ["*"])]
    view = _view_rules(READ, _CORE_VIEW)
    edit = [
        *view,
        *_view_rules(WRITE, _CORE_EDIT),
        rule([""], ["secrets"], READ),
        rule(["coordination.k8s.io"], ["leases"], [*READ, *WRITE]),
    ]
    own_roles = rule([RBAC_GROUP], ["rolebindings", "roles"], [*READ, *WRITE])
    yield "view", view
    yield "edit", edit
    yield "admin", [*edit, own_roles, rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"])]
    health = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
    yield (
        "system:discovery",
        [_paths(["get"], ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *health])],
    )
    yield "system:public-info-viewer", [_paths(["get"], health)]
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    yield (
        "system:basic-user",
        [
            rule(["authorization.k8s.io"], reviews, ["create"]),
            rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
        ],
    )
    yield (
        "system:auth-delegator",
        [
            rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
            rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        ],
    )
    yield "system:kube-scheduler", _scheduler_rules()
    yield (
        "system:volume-scheduler",
        [
            rule([""], ["persistentvolumes", "persistentvolumeclaims"], [*READ, *WRITE_STATUS]),
            rule(["storage.k8s.io"], ["storageclasses"], READ),
        ],
    )
    yield "system:node", _node_rules()
    yield "system:kube-controller-manager", [everything]
    yield "system:monitoring", [_paths(["get"], ["/metrics", "/metrics/*", *health])]


def _group(name: str) -> Document:
    return {"kind": "Group", "apiGroup": RBAC_GROUP, "name": name}


def _user(name: str) -> Document:
    return {"kind": "User", "apiGroup": RBAC_GROUP, "name": name}


def _bindings() -> Iterator[tuple[str, list[Document]]]:
    yield "cluster-admin", [_group("system:masters")]
    yield "system:discovery", [_group("system:authenticated")]
    yield "system:basic-user", [_group("system:authenticated")]
    yield "system:public-info-viewer", [_group("system:authenticated"), _group("system:unauthenticated")]
    yield "system:kube-scheduler", [_user("system:kube-scheduler")]
    yield "system:volume-scheduler", [_user("system:kube-scheduler")]
    yield "system:kube-controller-manager", [_user("system:kube-controller-manager")]
    yield "system:node", [_group("system:nodes")]
    yield "system:monitoring", [_group("system:monitoring")]
