"""Field rules of built-in kinds: what kube-apiserver rejects with 422, with its paths and messages.

Functions return causes. Rules of pods are in `pod_rules`, those of metadata in `label_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from multisched.cluster.admission import pod_rules, storage_rules
from multisched.cluster.base import errors, label_rules
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.base.selectors import from_label_selector

Causes = list[dict[str, str]]

USER_PRIORITY_MAX = 1_000_000_000
EVENT_FIELD_BYTES_MAX, EVENT_NOTE_BYTES_MAX = 128, 1_024
IMMUTABLE = "field is immutable"
NEEDS_VERSION = frozenset(
    {
        "leases.coordination.k8s.io",
        "poddisruptionbudgets.policy",
        "customresourcedefinitions.apiextensions.k8s.io",
        "csinodes.storage.k8s.io",
    }
)
"""Built-in kinds whose PUT requires a resourceVersion; all custom kinds require it, too."""


def create(resource: Resource, document: Document) -> Causes:
    """Returns the causes for a new object."""
    causes = label_rules.metadata(resource, document["metadata"])
    rule = _CREATE.get(resource.storage_key)
    return causes + rule(document) if rule is not None else causes


def update(resource: Resource, new: Document, old: Document, subresource: str) -> Causes:
    """Returns the causes for a change."""
    if subresource in ("status", "finalize", "binding"):
        return []
    metadata, before = new["metadata"], old["metadata"]
    causes: Causes = []
    if metadata.get("labels") != before.get("labels") or metadata.get("annotations") != before.get("annotations"):
        causes += label_rules.metadata(resource, metadata)
    if before.get("deletionTimestamp"):
        added = sorted(set(metadata.get("finalizers") or ()) - set(before.get("finalizers") or ()))
        if added:
            detail = "no new finalizers can be added if the object is being deleted, found new finalizers " + repr(
                added
            )
            causes.append(errors.forbidden_value("metadata.finalizers", detail))
    if resource.storage_key == "pods":
        return causes if subresource else causes + pod_rules.changed_pod(new, old)
    rule, change = _CREATE.get(resource.storage_key), _UPDATE.get(resource.storage_key)
    if rule is not None:
        causes += rule(new)
    if change is not None:
        causes += change(new, old)
    return causes


def _spec(document: Mapping[str, Any]) -> Document:
    return document.get("spec") or {}


def _immutable(document: Document, before: Document, path: str) -> Causes:
    """Returns a cause if the field at this path differs."""
    new: Any = document
    old: Any = before
    for part in path.split("."):
        new = new.get(part) if isinstance(new, dict) else None
        old = old.get(part) if isinstance(old, dict) else None
    return [] if new == old else [errors.invalid_value(path, new, IMMUTABLE)]


def _count(spec: Mapping[str, Any], field: str, path: str = "spec") -> Causes:
    value = spec.get(field)
    if value is None:
        return []
    if not isinstance(value, int) or isinstance(value, bool):
        return [errors.invalid_value(f"{path}.{field}", value, "must be an integer")]
    return [] if value >= 0 else [errors.invalid_value(f"{path}.{field}", value, "must be greater than or equal to 0")]


def _node(document: Document) -> Causes:
    status = document.get("status") or {}
    for field in ("capacity", "allocatable"):
        pod_rules.check_quantities("Node", status.get(field))
    return pod_rules.taints(_spec(document).get("taints") or ())


def _template(spec: Mapping[str, Any], path: str = "spec.template") -> Causes:
    template = spec.get("template") or {}
    labels = label_rules.labels((template.get("metadata") or {}).get("labels"), f"{path}.labels")
    return labels + pod_rules.spec(template.get("spec") or {}, f"{path}.spec")


def _workload(document: Document) -> Causes:
    spec = _spec(document)
    selector = spec.get("selector")
    causes = _count(spec, "replicas") + _template(spec)
    if selector is None:
        return [*causes, errors.required("spec.selector")]
    selector_causes = pod_rules.label_selector(selector, "spec.selector")
    causes += selector_causes
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(errors.invalid_value("spec.selector", selector, "empty selector is invalid for deployment"))
        return causes
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if not selector_causes and not from_label_selector(selector)(labels):
        detail = "`selector` does not match template `labels`"
        causes.append(errors.invalid_value("spec.template.metadata.labels", labels, detail))
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy")
    if policy != "Always":
        causes.append(errors.unsupported_value("spec.template.spec.restartPolicy", policy, ["Always"]))
    return causes


_RETENTION = ("Retain", "Delete")
_STATEFUL_SET_MUTABLE = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)  # fmt: skip


def _stateful_set(document: Document) -> Causes:
    spec = _spec(document)
    causes = _workload({**document, "spec": {**spec, "template": _member_template(spec)}})
    if spec.get("podManagementPolicy") not in ("OrderedReady", "Parallel"):
        detail = "must be 'OrderedReady' or 'Parallel'"
        causes.append(errors.invalid_value("spec.podManagementPolicy", spec.get("podManagementPolicy"), detail))
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        causes.append(errors.invalid_value("spec.updateStrategy", strategy, "must be 'RollingUpdate' or 'OnDelete'"))
    elif strategy["type"] == "OnDelete" and strategy.get("rollingUpdate") is not None:
        detail = "only allowed for updateStrategy 'RollingUpdate'"
        causes.append(errors.invalid_value("spec.updateStrategy.rollingUpdate", strategy["rollingUpdate"], detail))
    causes += _count(strategy.get("rollingUpdate") or {}, "partition", "spec.updateStrategy.rollingUpdate")
    policy = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    for field in ("whenDeleted", "whenScaled"):
        if policy.get(field) not in _RETENTION:
            path = f"spec.persistentVolumeClaimRetentionPolicy.{field}"
            causes.append(errors.unsupported_value(path, policy.get(field), _RETENTION))
    causes += _count(spec, "minReadySeconds") + _count(spec.get("ordinals") or {}, "start", "spec.ordinals")
    return causes


def _member_template(spec: Mapping[str, Any]) -> Document:
    """Returns the set's pod template with a volume per claim template, without hostname and subdomain, which the controller sets."""
    template: Document = spec.get("template") or {}
    claims = [(claim.get("metadata") or {}).get("name") or "" for claim in spec.get("volumeClaimTemplates") or ()]
    pod = {name: value for name, value in (template.get("spec") or {}).items() if name not in ("hostname", "subdomain")}
    own = [volume for volume in pod.get("volumes") or () if volume.get("name") not in claims]
    pod["volumes"] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims] + own
    return {**template, "spec": pod}


def _stateful_set_change(new: Document, old: Document) -> Causes:
    fixed = [{k: v for k, v in _spec(each).items() if k not in _STATEFUL_SET_MUTABLE} for each in (new, old)]
    if fixed[0] == fixed[1]:
        return []
    *names, last = (f"'{name}'" for name in _STATEFUL_SET_MUTABLE)
    detail = f"updates to statefulset spec for fields other than {', '.join(names)} and {last} are forbidden"
    return [errors.forbidden_value("spec", detail)]


def _job_spec(spec: Mapping[str, Any], path: str) -> Causes:
    causes = _template(spec, f"{path}.template")
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        causes += _count(spec, field, path)
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy")
    if policy not in ("OnFailure", "Never"):
        causes.append(errors.unsupported_value(f"{path}.template.spec.restartPolicy", policy, ["OnFailure", "Never"]))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        causes.append(errors.required(f"{path}.completions", "when completion mode is Indexed"))
    return causes


def _job(document: Document) -> Causes:
    return _job_spec(_spec(document), "spec")


def _job_change(new: Document, old: Document) -> Causes:
    causes = _immutable(new, old, "spec.selector") + _immutable(new, old, "spec.completionMode")
    if _spec(new).get("completionMode") != "Indexed":
        causes += _immutable(new, old, "spec.completions")
    was_suspended = bool(_spec(old).get("suspend")) and not (old.get("status") or {}).get("startTime")
    return causes if was_suspended else causes + _immutable(new, old, "spec.template")


def _cron_job(document: Document) -> Causes:
    spec = _spec(document)
    causes = _job_spec((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")
    schedule = str(spec.get("schedule") or "")
    if not schedule:
        causes.append(errors.required("spec.schedule"))
    elif len(schedule.split()) != 5 and not schedule.startswith("@"):
        detail = f"expected exactly 5 fields, found {len(schedule.split())}: [{schedule}]"
        causes.append(errors.invalid_value("spec.schedule", schedule, detail))
    if spec.get("concurrencyPolicy") not in ("Allow", "Forbid", "Replace"):
        choices = ["Allow", "Forbid", "Replace"]
        causes.append(errors.unsupported_value("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), choices))
    return causes


def _budget(document: Document) -> Causes:
    spec = _spec(document)
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [errors.invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    causes = pod_rules.label_selector(spec.get("selector"), "spec.selector")
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, int) and value < 0:
            causes.append(errors.invalid_value(f"spec.{field}", value, "must be greater than or equal to 0"))
        elif isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            detail = (
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
                "regex used for validation is '[0-9]+%')"
            )
            causes.append(errors.invalid_value(f"spec.{field}", value, detail))
    return causes


def _priority_class(document: Document) -> Causes:
    name, value = document["metadata"]["name"], document.get("value")
    if not isinstance(value, int):
        return [errors.invalid_value("value", value, "must be an integer")]
    causes: Causes = []
    system = {"system-node-critical", "system-cluster-critical"}
    if name.startswith("system-"):
        if name not in system:
            causes.append(
                errors.forbidden_value(
                    "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
                )
            )
    elif value > USER_PRIORITY_MAX:
        causes.append(
            errors.forbidden_value("value", f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}")
        )
    policy = document.get("preemptionPolicy")
    if policy not in ("Never", "PreemptLowerPriority"):
        causes.append(errors.unsupported_value("preemptionPolicy", policy, ["Never", "PreemptLowerPriority"]))
    return causes


def _priority_change(new: Document, old: Document) -> Causes:
    causes: Causes = []
    if new.get("value") != old.get("value"):
        causes.append(errors.forbidden_value("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        causes.append(errors.invalid_value("preemptionPolicy", new.get("preemptionPolicy"), IMMUTABLE))
    return causes


def _service(document: Document) -> Causes:
    spec = _spec(document)
    causes: Causes = []
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        causes.append(errors.required("spec.ports"))
    for place, port in enumerate(spec.get("ports") or ()):
        number = port.get("port") or 0
        if not 0 < number < 65_536:
            causes.append(
                errors.invalid_value(f"spec.ports[{place}].port", number, "must be between 1 and 65535, inclusive")
            )
        if len(spec["ports"]) > 1 and not port.get("name"):
            causes.append(errors.required(f"spec.ports[{place}].name"))
    return causes


def _event(document: Document) -> Causes:
    namespace, about = document["metadata"].get("namespace", ""), document.get("involvedObject") or {}
    actual = about.get("namespace") or ""
    is_default = actual == "" and namespace in ("default", "kube-system")
    if actual != namespace and not is_default:
        return [errors.invalid_value("involvedObject.namespace", actual, "does not match event.namespace")]
    return _timed_event(document) if document.get("eventTime") else []


def _timed_event(document: Document) -> Causes:
    """Returns the causes for an event with eventTime. The rules of events.k8s.io/v1 apply to core/v1, too."""
    causes: Causes = []
    if not document.get("reportingComponent"):
        causes.append(errors.required("reportingController"))
    for field in ("reportingInstance", "action", "reason"):
        if not document.get(field):
            causes.append(errors.required(field))
        causes += _at_most(document, field, EVENT_FIELD_BYTES_MAX)
    return causes + _at_most(document, "message", EVENT_NOTE_BYTES_MAX)


def _at_most(document: Document, field: str, most: int) -> Causes:
    is_long = len((document.get(field) or "").encode()) > most
    return [errors.invalid_value(field, "", f"can have at most {most} characters")] if is_long else []


def _lease(document: Document) -> Causes:
    spec = _spec(document)
    causes: Causes = []
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        causes.append(errors.invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    transitions = spec.get("leaseTransitions")
    if transitions is not None and transitions < 0:
        causes.append(errors.invalid_value("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return causes


def _limit_range(document: Document) -> Causes:
    for item in _spec(document).get("limits") or ():
        for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio"):
            pod_rules.check_quantities("LimitRange", item.get(field))
    return []


def _quota(document: Document) -> Causes:
    pod_rules.check_quantities("ResourceQuota", _spec(document).get("hard"))
    return []


def _role_change(new: Document, old: Document) -> Causes:
    if new.get("roleRef") == old.get("roleRef"):
        return []
    return [errors.invalid_value("roleRef", new.get("roleRef"), "cannot change roleRef")]


def _selector_fixed(new: Document, old: Document) -> Causes:
    return _immutable(new, old, "spec.selector")


def _pod(document: Document) -> Causes:
    return pod_rules.new_pod(document["spec"])


_CREATE: Mapping[str, Callable[[Document], Causes]] = {
    "pods": _pod,
    "nodes": _node,
    "services": _service,
    "events": _event,
    "limitranges": _limit_range,
    "resourcequotas": _quota,
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _workload,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "poddisruptionbudgets.policy": _budget,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "leases.coordination.k8s.io": _lease,
    "persistentvolumeclaims": storage_rules.claim,
    "persistentvolumes": storage_rules.volume,
    "storageclasses.storage.k8s.io": storage_rules.storage_class,
}
_UPDATE: Mapping[str, Callable[[Document, Document], Causes]] = {
    "deployments.apps": _selector_fixed,
    "replicasets.apps": _selector_fixed,
    "statefulsets.apps": _stateful_set_change,
    "daemonsets.apps": _selector_fixed,
    "jobs.batch": _job_change,
    "priorityclasses.scheduling.k8s.io": _priority_change,
    "rolebindings.rbac.authorization.k8s.io": _role_change,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_change,
    "persistentvolumeclaims": storage_rules.claim_change,
    "persistentvolumes": storage_rules.volume_change,
    "storageclasses.storage.k8s.io": storage_rules.storage_class_change,
    "resourceclaims.resource.k8s.io": lambda new, old: _immutable(new, old, "spec"),
}
