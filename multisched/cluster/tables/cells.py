"""The cells of built-in kinds, equal to those of kube-apiserver's printers.

`Cells` has columns (name, priority: 0 always, 1 with -o wide, type) and a function from a document to a row.
Source: pkg/printers/internalversion/printers.go, 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from multisched.cluster.base.resources import Document
from multisched.cluster.base.selectors import selector_text
from multisched.cluster.tables.rare_cells import RARE_CELLS
from multisched.cluster.tables.text import (
    NONE,
    UNKNOWN,
    UNSET,
    Cells,
    age,
    columns,
    human_duration,
    listed,
    name_of,
    simple,
    since,
    spec_of,
    status_of,
)
from multisched.model.api_time import parse_timestamp


def _pods_of(spec: Document) -> tuple[str, str]:
    """Returns names and images of a template's containers."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    return listed([entry.get("name", "") for entry in containers]), listed(
        [entry.get("image", "") for entry in containers]
    )


def _selector(spec: Document) -> str:
    selector = spec.get("selector")
    return (selector_text(selector) if selector else "") or NONE


# -- pods and nodes ----------------------------------------------------------------------------------------------


def _pod(pod: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(pod), status_of(pod)
    statuses = status.get("containerStatuses") or []
    restartable = {
        entry["name"] for entry in spec.get("initContainers") or () if entry.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(restartable)
    ready = sum(1 for entry in statuses if entry.get("ready") and (entry.get("state") or {}).get("running") is not None)
    ready += sum(
        1
        for entry in status.get("initContainerStatuses") or ()
        if entry.get("name") in restartable and entry.get("ready")
    )
    conditions = status.get("conditions") or ()
    gates = spec.get("readinessGates") or ()
    met = {entry.get("type") for entry in conditions if entry.get("status") == "True"}
    shown_gates = f"{sum(1 for gate in gates if gate.get('conditionType') in met)}/{len(gates)}" if gates else NONE
    return (
        name_of(pod),
        f"{ready}/{total}",
        _pod_reason(pod),
        _restarts(statuses, now),
        age(pod, now),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        shown_gates,
    )


def _restarts(statuses: list[Document], now: datetime) -> str:
    count = sum(int(entry.get("restartCount") or 0) for entry in statuses)
    ends = [((entry.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for entry in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({since(last, now)} ago)" if count and last else str(count)


def _pod_reason(pod: Document) -> str:
    status = status_of(pod)
    reason = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initial = _init_reason(pod)
    reason = initial or _container_reason(status.get("containerStatuses") or [], reason)
    if "deletionTimestamp" in pod["metadata"]:
        return UNKNOWN if status.get("reason") == "NodeLost" else "Terminating"
    return str(reason)


def _init_reason(pod: Document) -> str:
    specs = {entry["name"]: entry for entry in spec_of(pod).get("initContainers") or ()}
    statuses = status_of(pod).get("initContainerStatuses") or []
    for place, entry in enumerate(statuses):
        state = entry.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and int(ended.get("exitCode") or 0) == 0:
            continue
        if specs.get(entry.get("name"), {}).get("restartPolicy") == "Always" and entry.get("started"):
            continue
        if ended is not None:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended.get('exitCode'))}"
        if waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{place}/{len(specs)}"
    return ""


def _container_reason(statuses: list[Document], reason: str) -> str:
    has_running = False
    for entry in reversed(statuses):
        state = entry.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason"):
            reason = waiting["reason"]
        elif ended is not None:
            signal = ended.get("signal")
            reason = ended.get("reason") or (f"Signal:{signal}" if signal else f"ExitCode:{ended.get('exitCode', 0)}")
        elif entry.get("ready") and state.get("running") is not None:
            has_running = True
    return "Running" if reason == "Completed" and has_running else reason


def _node(node: Document, now: datetime) -> tuple[Any, ...]:
    status, labels = status_of(node), node["metadata"].get("labels") or {}
    conditions = [entry for entry in status.get("conditions") or () if entry.get("type") == "Ready"]
    shown = ["Ready" if entry.get("status") == "True" else "NotReady" for entry in conditions] or ["Unknown"]
    if spec_of(node).get("unschedulable"):
        shown.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    info = status.get("nodeInfo") or {}
    addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
    return (
        name_of(node),
        ",".join(shown),
        listed(sorted(role for role in roles if role)),
        age(node, now),
        info.get("kubeletVersion") or "",
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    )


# -- workloads ---------------------------------------------------------------------------------------------------


def _deployment(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    ready = f"{status.get('readyReplicas') or 0}/{spec.get('replicas') or 0}"
    counts = (int(status.get("updatedReplicas") or 0), int(status.get("availableReplicas") or 0))
    return (name_of(document), ready, *counts, age(document, now), *_pods_of(spec), _selector(spec))


def _replica_set(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    counts = (int(spec.get("replicas") or 0), int(status.get("replicas") or 0), int(status.get("readyReplicas") or 0))
    return (name_of(document), *counts, age(document, now), *_pods_of(spec), _selector(spec))


def _stateful_set(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    ready = f"{status.get('readyReplicas') or 0}/{spec.get('replicas') or 0}"
    return (name_of(document), ready, age(document, now), *_pods_of(spec))


def _daemon_set(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    selector = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector") or {}
    shown = ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or NONE
    counts = tuple(int(status.get(name) or 0) for name in names)
    return (name_of(document), *counts, shown, age(document, now), *_pods_of(spec), _selector(spec))


def _job(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    done, wanted, parallel = status.get("succeeded") or 0, spec.get("completions"), spec.get("parallelism")
    completions = (
        f"{done}/{wanted}" if wanted is not None else f"{done}/1 of {parallel}" if (parallel or 0) > 1 else f"{done}/1"
    )
    duration = ""
    if status.get("startTime"):
        end = parse_timestamp(status["completionTime"]) if status.get("completionTime") else now
        duration = human_duration((end - parse_timestamp(status["startTime"])).total_seconds())
    return (
        name_of(document),
        _job_state(document),
        completions,
        duration,
        age(document, now),
        *_pods_of(spec),
        _selector(spec),
    )


def _job_state(document: Document) -> str:
    met = {entry.get("type") for entry in status_of(document).get("conditions") or () if entry.get("status") == "True"}
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if condition in met:
            return shown
    if "deletionTimestamp" in document["metadata"]:
        return "Terminating"
    for condition in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if condition in met:
            return condition
    return "Running"


def _cron_job(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    inner = spec_of(spec.get("jobTemplate") or {})
    last = since(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else NONE
    return (
        name_of(document),
        spec.get("schedule") or "",
        spec.get("timeZone") or NONE,
        str(bool(spec.get("suspend"))),  # upstream capitalizes this boolean, but no others
        len(status.get("active") or ()),
        last,
        age(document, now),
        *_pods_of(inner),
        _selector(inner),
    )


def _budget(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    allowed = int(status_of(document).get("disruptionsAllowed") or 0)
    shown = ("N/A" if least is None else str(least), "N/A" if most is None else str(most))
    return (name_of(document), *shown, allowed, age(document, now))


# -- the rest ----------------------------------------------------------------------------------------------------


def _event(document: Document, now: datetime) -> tuple[Any, ...]:
    about = document.get("involvedObject") or document.get("regarding") or {}
    series = document.get("series") or {}
    first = document.get("firstTimestamp") or document.get("deprecatedFirstTimestamp") or document.get("eventTime")
    last = document.get("lastTimestamp") or document.get("deprecatedLastTimestamp")
    count = document.get("count") or document.get("deprecatedCount") or 1
    if series:
        last, count = series.get("lastObservedTime"), series.get("count", count)
    source = document.get("source") or document.get("deprecatedSource") or {}
    component = (
        source.get("component") or document.get("reportingComponent") or document.get("reportingController") or ""
    )
    message = str(document.get("message") or document.get("note") or "").strip()
    return (
        since(last or first, now),
        document.get("type") or "",
        document.get("reason") or "",
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath") or "",
        f"{component}, {source['host']}" if source.get("host") else component,
        message,
        since(first, now),
        int(count),
        name_of(document),
    )


def _service(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    ports = [
        f"{port.get('port')}{':' + str(port['nodePort']) if port.get('nodePort') else ''}/{port.get('protocol', 'TCP')}"
        for port in spec.get("ports") or ()
    ]
    ingress = (status_of(document).get("loadBalancer") or {}).get("ingress") or ()
    external = list(spec.get("externalIPs") or ()) + [
        entry.get("ip") or entry.get("hostname") or "" for entry in ingress
    ]
    pending = "<pending>" if spec.get("type") == "LoadBalancer" else NONE
    shown = spec.get("externalName") or (",".join(external) if external else pending)
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items())) or NONE
    address = spec.get("clusterIP") or NONE
    return (
        name_of(document),
        spec.get("type", "ClusterIP"),
        address,
        shown,
        listed(ports),
        age(document, now),
        selector,
    )


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(spec: Document) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in spec.get("accessModes") or ())


def _volume(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    claim = spec.get("claimRef")
    return (
        name_of(document),
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec),
        spec.get("persistentVolumeReclaimPolicy") or "",
        status.get("phase") or "",
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        status.get("reason") or "",
        age(document, now),
        spec.get("volumeMode") or UNSET,
    )


def _claim(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    phase = "Terminating" if "deletionTimestamp" in document["metadata"] else status.get("phase") or ""
    return (
        name_of(document),
        phase,
        spec.get("volumeName") or "",
        (status.get("capacity") or {}).get("storage", ""),
        _modes(status),
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        age(document, now),
        spec.get("volumeMode") or UNSET,
    )


def _storage_class(document: Document, now: datetime) -> tuple[Any, ...]:
    annotations = document["metadata"].get("annotations") or {}
    is_default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return (
        name_of(document) + (" (default)" if is_default else ""),
        document.get("provisioner") or "",
        document.get("reclaimPolicy") or "Delete",
        document.get("volumeBindingMode") or "Immediate",
        str(bool(document.get("allowVolumeExpansion"))).lower(),
        age(document, now),
    )


def _quota(document: Document, now: datetime) -> tuple[Any, ...]:
    hard, used = (
        status_of(document).get("hard") or spec_of(document).get("hard") or {},
        status_of(document).get("used") or {},
    )
    shown = {name: f"{name}: {used.get(name, 0)}/{bound}" for name, bound in sorted(hard.items())}
    limits = ", ".join(text for name, text in shown.items() if name.startswith("limits."))
    requests = ", ".join(text for name, text in shown.items() if not name.startswith("limits."))
    return (name_of(document), requests, limits, age(document, now))


def _binding(document: Document, now: datetime) -> tuple[Any, ...]:
    reference, subjects = document.get("roleRef") or {}, document.get("subjects") or ()
    users = ", ".join(entry["name"] for entry in subjects if entry.get("kind") == "User")
    groups = ", ".join(entry["name"] for entry in subjects if entry.get("kind") == "Group")
    accounts = ", ".join(
        f"{entry.get('namespace', '')}/{entry['name']}" for entry in subjects if entry.get("kind") == "ServiceAccount"
    )
    return (
        name_of(document),
        f"{reference.get('kind')}/{reference.get('name')}",
        age(document, now),
        users,
        groups,
        accounts,
    )


def _claim_state(document: Document) -> str:
    states = []
    status = status_of(document)
    if "deletionTimestamp" in document["metadata"]:
        states.append("deleted")
    if status.get("allocation") is None:
        return ",".join([*states, "pending"]) if not states else "deleted"
    states.append("allocated")
    if status.get("reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _endpoints(document: Document, now: datetime) -> tuple[Any, ...]:
    found = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in document.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ({"port": ""},)
    ]
    return (name_of(document), listed(found[:3]), age(document, now))


def _created(document: Document, _now: datetime) -> tuple[Any, ...]:
    return (name_of(document), document["metadata"].get("creationTimestamp") or "")


def _owner(document: Document) -> str:
    owners = document["metadata"].get("ownerReferences") or ()
    controller = next((entry for entry in owners if entry.get("controller")), None)
    if controller is None:
        return NONE
    group = str(controller.get("apiVersion", "")).rpartition("/")[0]
    kind = str(controller.get("kind", "")).lower()
    return f"{kind}.{group}/{controller.get('name')}" if group else f"{kind}/{controller.get('name')}"


default_cells = Cells(columns("Name,Created At@"), _created)

_TEMPLATE = "Containers*,Images*,Selector*"
CELLS: Mapping[str, Cells] = {
    "pods": Cells(columns("Name,Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*"), _pod),
    "nodes": Cells(
        columns("Name,Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*"),
        _node,
    ),
    "namespaces": Cells(columns("Name,Status,Age"), simple(lambda entry: status_of(entry).get("phase") or "")),
    "services": Cells(columns("Name,Type,Cluster-IP,External-IP,Port(s),Age,Selector*"), _service),
    "endpoints": Cells(columns("Name,Endpoints,Age"), _endpoints),
    "events": Cells(
        columns("Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count*,Name*"), _event
    ),
    "configmaps": Cells(
        columns("Name,Data,Age"),
        simple(lambda entry: len(entry.get("data") or ()) + len(entry.get("binaryData") or ())),
    ),
    "secrets": Cells(
        columns("Name,Type,Data,Age"),
        simple(lambda entry: entry.get("type", ""), lambda entry: len(entry.get("data") or ())),
    ),
    "serviceaccounts": Cells(columns("Name,Age"), simple()),
    "persistentvolumes": Cells(
        columns(
            "Name,Capacity,Access Modes,Reclaim Policy,Status,Claim,StorageClass,VolumeAttributesClass,Reason,Age,VolumeMode*"
        ),
        _volume,
    ),
    "persistentvolumeclaims": Cells(
        columns("Name,Status,Volume,Capacity,Access Modes,StorageClass,VolumeAttributesClass,Age,VolumeMode*"), _claim
    ),
    "replicationcontrollers": Cells(columns("Name,Desired#,Current#,Ready#,Age," + _TEMPLATE), _replica_set),
    "resourcequotas": Cells(columns("Name,Request,Limit,Age"), _quota),
    "deployments.apps": Cells(columns("Name,Ready,Up-to-date,Available,Age," + _TEMPLATE), _deployment),
    "replicasets.apps": Cells(columns("Name,Desired#,Current#,Ready#,Age," + _TEMPLATE), _replica_set),
    "statefulsets.apps": Cells(columns("Name,Ready,Age,Containers*,Images*"), _stateful_set),
    "daemonsets.apps": Cells(
        columns("Name,Desired#,Current#,Ready#,Up-to-date#,Available#,Node Selector,Age," + _TEMPLATE), _daemon_set
    ),
    "controllerrevisions.apps": Cells(
        columns("Name,Controller,Revision,Age"),
        simple(lambda entry: _owner(entry), lambda entry: entry.get("revision") or 0),
    ),
    "jobs.batch": Cells(columns("Name,Status,Completions,Duration,Age," + _TEMPLATE), _job),
    "cronjobs.batch": Cells(
        columns("Name,Schedule,Timezone,Suspend?,Active#,Last Schedule,Age," + _TEMPLATE), _cron_job
    ),
    "poddisruptionbudgets.policy": Cells(
        columns("Name,Min Available,Max Unavailable,Allowed Disruptions#,Age"), _budget
    ),
    "priorityclasses.scheduling.k8s.io": Cells(
        columns("Name,Value#,Global-Default?,Age,PreemptionPolicy"),
        lambda entry, now: (
            name_of(entry),
            entry.get("value") or 0,
            bool(entry.get("globalDefault")),
            age(entry, now),
            entry.get("preemptionPolicy") or "",
        ),
    ),
    "storageclasses.storage.k8s.io": Cells(
        columns("Name,Provisioner,ReclaimPolicy,VolumeBindingMode,AllowVolumeExpansion,Age"), _storage_class
    ),
    "csinodes.storage.k8s.io": Cells(
        columns("Name,Drivers#,Age"), simple(lambda entry: len(spec_of(entry).get("drivers") or ()))
    ),
    "leases.coordination.k8s.io": Cells(
        columns("Name,Holder,Age"), simple(lambda entry: spec_of(entry).get("holderIdentity") or "")
    ),
    "rolebindings.rbac.authorization.k8s.io": Cells(columns("Name,Role,Age,Users*,Groups*,ServiceAccounts*"), _binding),
    "clusterrolebindings.rbac.authorization.k8s.io": Cells(
        columns("Name,Role,Age,Users*,Groups*,ServiceAccounts*"), _binding
    ),
    "resourceclaims.resource.k8s.io": Cells(columns("Name,State,Age"), simple(_claim_state)),
    "resourceclaimtemplates.resource.k8s.io": Cells(columns("Name,Age"), simple()),
    "deviceclasses.resource.k8s.io": Cells(columns("Name,Age"), simple()),
    "resourceslices.resource.k8s.io": Cells(
        columns("Name,Node,Driver,Pool,Age"),
        simple(
            lambda entry: spec_of(entry).get("nodeName") or "",
            lambda entry: spec_of(entry).get("driver") or "",
            lambda entry: (spec_of(entry).get("pool") or {}).get("name") or "",
        ),
    ),
    **RARE_CELLS,
}
