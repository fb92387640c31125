"""Default values of built-in kinds, as kube-apiserver sets them when it decodes an object.

Each function changes the given document. Called on create and on every write of the main resource.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from multisched.cluster.base.resources import Document

DEFAULT_SCHEDULER = "default-scheduler"


def container(entry: Document) -> None:
    """Sets the defaults of one container of a pod or template."""
    entry.setdefault("resources", {})
    _limits_to_requests(entry["resources"])
    entry.setdefault("terminationMessagePath", "/dev/termination-log")
    entry.setdefault("terminationMessagePolicy", "File")
    if not entry.get("imagePullPolicy"):
        entry["imagePullPolicy"] = _pull_policy(entry.get("image") or "")
    for port in entry.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if entry.get(kind):
            _probe(entry[kind])
    for variable in entry.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return "IfNotPresent" if tag and tag != "latest" else "Always"


def _limits_to_requests(resources: Document) -> None:
    limits = resources.get("limits")
    if not limits:
        return
    requests = resources.setdefault("requests", {})
    for name, amount in limits.items():
        requests.setdefault(name, amount)


def _probe(probe: Document) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        if not probe.get(name):
            probe[name] = value
    http = probe.get("httpGet")
    if http is not None:
        http.setdefault("path", "/")
        http.setdefault("scheme", "HTTP")


_MODE = 0o644
_VOLUME_MODES = ("configMap", "secret", "downwardAPI", "projected")


def _volume(volume: Document) -> None:
    for kind in _VOLUME_MODES:
        if volume.get(kind) is not None:
            volume[kind].setdefault("defaultMode", _MODE)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in (volume.get("projected") or {}).get("sources") or ():
        if source.get("serviceAccountToken") is not None:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)


def pod_spec(spec: Document) -> None:
    """Sets the defaults of the spec of a pod or pod template."""
    for entry in spec.get("containers") or ():
        container(entry)
    for entry in spec.get("initContainers") or ():
        container(entry)
    if spec.get("volumes"):
        for volume in spec["volumes"]:
            _volume(volume)
    spec.setdefault("restartPolicy", "Always")
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = 30
    spec.setdefault("dnsPolicy", "ClusterFirst")
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if not spec.get("schedulerName"):
        spec["schedulerName"] = DEFAULT_SCHEDULER
    if spec.get("hostNetwork"):
        for entry in spec.get("containers") or ():
            for port in entry.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort"))
    if spec.get("serviceAccount") and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    elif spec.get("serviceAccountName") and not spec.get("serviceAccount"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    resources = spec.get("resources")
    if resources:
        _limits_to_requests(resources)


def pod(document: Document) -> None:
    spec = document.setdefault("spec", {})
    pod_spec(spec)
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True


def _template(holder: Document) -> None:
    template = holder.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _scaled(document: Document) -> Document:
    spec: Document = document.setdefault("spec", {})
    if spec.get("replicas") is None:
        spec["replicas"] = 1
    _template(spec)
    return spec


def deployment(document: Document) -> None:
    spec = _scaled(document)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def replica_set(document: Document) -> None:
    _scaled(document)


def replication_controller(document: Document) -> None:
    """Sets the defaults of a ReplicationController; its selector and its labels default to the template's labels."""
    spec = _scaled(document)
    labels = (spec["template"].get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        document["metadata"].setdefault("labels", dict(labels))


def stateful_set(document: Document) -> None:
    spec = _scaled(document)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.pop("maxUnavailable", None)  # the feature gate of this field is off in 1.36
    spec.setdefault("revisionHistoryLimit", 10)
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    policy.setdefault("whenDeleted", "Retain")
    policy.setdefault("whenScaled", "Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim.setdefault("metadata", {})
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim["status"] = {"phase": "Pending"}
    status = document.setdefault("status", {})
    status.setdefault("replicas", 0)
    status.setdefault("availableReplicas", 0)


def daemon_set(document: Document) -> None:
    spec = document.setdefault("spec", {})
    _template(spec)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", 0)
        rolling.setdefault("maxUnavailable", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    status = document.setdefault("status", {})
    for count in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"):
        status.setdefault(count, 0)


def _job_spec(spec: Document) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1
    spec.setdefault("completionMode", "NonIndexed")
    if spec.get("suspend") is None:
        spec["suspend"] = False
    if not spec.get("podReplacementPolicy"):
        spec["podReplacementPolicy"] = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    _template(spec)


def job(document: Document) -> None:
    """Sets the defaults of a Job. `admission.label_job` sets selector and labels, which depend on the uid."""
    _job_spec(document.setdefault("spec", {}))


def cron_job(document: Document) -> None:
    """Sets the defaults of a CronJob; of the job template, only those of its pod template."""
    spec = document.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    inner = spec.setdefault("jobTemplate", {}).setdefault("spec", {})
    _template(inner)


def service(document: Document) -> None:
    """Sets the defaults of a Service; allocates no addresses."""
    spec = document.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


NODE_INFO: Mapping[str, str] = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "",
)


def node(document: Document) -> None:
    """Sets the defaults of a Node, and the fields that its Go type always encodes."""
    document.setdefault("spec", {})
    status = document.setdefault("status", {})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    for condition in status.get("conditions") or ():
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = {**NODE_INFO, **(status.get("nodeInfo") or {})}


def _spec_only(document: Document) -> None:
    document.setdefault("spec", {})


def pvc(document: Document) -> None:
    document.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def pv(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


def storage_class(document: Document) -> None:
    document.setdefault("reclaimPolicy", "Delete")
    document.setdefault("volumeBindingMode", "Immediate")


def priority_class(document: Document) -> None:
    document.setdefault("value", 0)
    document.setdefault("preemptionPolicy", "PreemptLowerPriority")


def secret(document: Document) -> None:
    """Sets the defaults of a Secret; moves `stringData` into `data`."""

    plain = document.pop("stringData", None)
    if plain:
        data = document.setdefault("data", {})
        data.update({key: b64encode(str(value).encode()).decode() for key, value in plain.items()})
    document.setdefault("type", "Opaque")


def limit_range(document: Document) -> None:
    """Sets the defaults of a LimitRange, derived from its bounds."""
    for item in (document.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        default = item.setdefault("default", {})
        for name, amount in (item.get("max") or {}).items():
            default.setdefault(name, amount)
        request = item.setdefault("defaultRequest", {})
        for name, amount in {**(item.get("min") or {}), **default}.items():
            request.setdefault(name, amount)


def role_binding(document: Document) -> None:
    """Sets the defaults of a RoleBinding or ClusterRoleBinding."""
    group = "rbac.authorization.k8s.io"
    document.setdefault("roleRef", {}).setdefault("apiGroup", group)
    for subject in document.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", group)


def resource_claim(document: Document) -> None:
    """Sets the defaults of a ResourceClaim; an exact request defaults to one device."""
    _device_requests(document.get("spec") or {})


def resource_claim_template(document: Document) -> None:
    _device_requests((document.get("spec") or {}).get("spec") or {})


def _device_requests(spec: Mapping[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        wants = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or []
        for want in wants:
            want.setdefault("allocationMode", "ExactCount")
            if want["allocationMode"] == "ExactCount":
                want.setdefault("count", 1)


DEFAULTS: Mapping[str, Callable[[Document], None]] = {
    "pods": pod,
    "nodes": node,
    "namespaces": _spec_only,
    "services": service,
    "secrets": secret,
    "persistentvolumeclaims": pvc,
    "persistentvolumes": pv,
    "limitranges": limit_range,
    "replicationcontrollers": replication_controller,
    "deployments.apps": deployment,
    "replicasets.apps": replica_set,
    "statefulsets.apps": stateful_set,
    "daemonsets.apps": daemon_set,
    "jobs.batch": job,
    "cronjobs.batch": cron_job,
    "storageclasses.storage.k8s.io": storage_class,
    "priorityclasses.scheduling.k8s.io": priority_class,
    "rolebindings.rbac.authorization.k8s.io": role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": role_binding,
    "resourceclaims.resource.k8s.io": resource_claim,
    "resourceclaimtemplates.resource.k8s.io": resource_claim_template,
}
