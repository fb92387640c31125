"""The handlers of the subresources binding, eviction and scale.

Each writes through `Objects`. Binding follows kube-apiserver's BindingREST: a compare-and-set on one pod that does not check the node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from multisched.cluster.api.objects import DeleteOptions, Objects
from multisched.cluster.base import errors
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.base.selectors import from_label_selector, selector_text
from multisched.cluster.base.storage import Stored

SUCCESS_CREATED = orjson.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
PDBS = "poddisruptionbudgets.policy"
EVICTION_RETRY_S = 10
DISRUPTED_PODS_MAX = 2_000


def set_condition(status: Document, condition: Document, now: str) -> None:
    """Sets a condition by type; updates lastTransitionTime only if its status changes."""
    conditions: list[Document] = status.setdefault("conditions", [])
    for entry in conditions:
        if entry.get("type") == condition["type"]:
            if entry.get("status") != condition["status"]:
                entry["lastTransitionTime"] = now
            for field in ("reason", "message"):
                if field not in condition:
                    entry.pop(field, None)
            entry.update(condition)
            return
    full: Document = {
        "type": condition["type"],
        "status": condition["status"],
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    conditions.append({**full, **condition})


def bind(objects: Objects, pods: Resource, namespace: str, name: str, binding: Document, *, is_dry_run: bool) -> bytes:
    """Handles POST pods/NAME/binding; returns the Status of a 201 response. Raises ApiError if the pod cannot be bound."""
    target = (binding.get("target") or {}).get("name")
    if not target:
        raise errors.ApiError(500, "", "target.name: Required value")
    metadata = binding.get("metadata") or {}
    if metadata.get("name", name) not in ("", name):
        raise errors.bad_request("name in URL does not match name in Binding object")
    stored = objects.stored(pods, namespace, name)
    _check_preconditions(pods, stored, namespace, name, metadata)
    pod = stored.document()
    _check_bindable(pod, name)
    pod["spec"]["nodeName"] = target
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    set_condition(status, {"type": "PodScheduled", "status": "True"}, objects.minting.now())
    labels = {**(metadata.get("labels") or {}), **objects.admission.topology_labels(target)}  # since 1.35
    for field, written in (("annotations", metadata.get("annotations")), ("labels", labels)):
        if written:
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **written}
    if not is_dry_run:
        objects.put(pods, stored, pod)
    return SUCCESS_CREATED


def _check_preconditions(pods: Resource, stored: Stored, namespace: str, name: str, metadata: Document) -> None:
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if uid and uid != stored.uid:
        raise errors.uid_conflict("", pods.plural, f"{namespace}/{name}", name, uid, stored.uid)
    if version and version != str(stored.version):
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: {version}, "
            f"ResourceVersion in object meta: {stored.version}"
        )
        raise errors.conflict("", pods.plural, name, why)


def _check_bindable(pod: Document, name: str) -> None:
    spec = pod["spec"]
    if "deletionTimestamp" in pod["metadata"]:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    else:
        return
    raise errors.conflict("", "pods/binding", name, why)


# -- eviction ----------------------------------------------------------------------------------------------------


def evict(
    objects: Objects,
    pods: Resource,
    budgets: Resource,
    namespace: str,
    name: str,
    eviction: Document,
    *,
    is_dry_run: bool,
) -> bytes:
    """Handles POST pods/NAME/eviction: deletes the pod. Raises 429 if a PodDisruptionBudget forbids it."""
    if (eviction.get("metadata") or {}).get("name") != name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    stored = objects.stored(pods, namespace, name)
    pod = stored.document()
    options = _eviction_options(eviction)
    if options.uid and options.uid != stored.uid:
        raise errors.uid_conflict("", "pods", f"{namespace}/{name}", name, options.uid, stored.uid)
    if options.version and options.version != str(stored.version):
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in record"
        )
        raise errors.conflict("", "Pod", name, f"{why} ({stored.version}). The object might have been modified")
    is_dry_run = is_dry_run or "All" in ((eviction.get("deleteOptions") or {}).get("dryRun") or ())
    phase = (pod.get("status") or {}).get("phase")
    ignores_budget = phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]
    if not ignores_budget:
        _take_from_budget(objects, budgets, namespace, name, pod, is_dry_run)
    if not is_dry_run:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        set_condition(pod.setdefault("status", {}), condition, objects.minting.now())
        objects.put(pods, stored, pod)
        # Setting the condition changed the resourceVersion that the precondition names.
        objects.delete(pods, namespace, name, replace(options, version=""))
    return SUCCESS_CREATED


def _eviction_options(eviction: Document) -> DeleteOptions:
    given = eviction.get("deleteOptions") or {}
    wanted = given.get("preconditions") or {}
    return DeleteOptions(
        given.get("gracePeriodSeconds"),
        wanted.get("uid") or "",
        wanted.get("resourceVersion") or "",
        given.get("propagationPolicy") or "",
    )


def _take_from_budget(
    objects: Objects, budgets: Resource, namespace: str, name: str, pod: Document, is_dry_run: bool
) -> None:
    labels = pod["metadata"].get("labels") or {}
    matching = []
    for _key, stored in objects.store.collection(PDBS).items(namespace):
        budget = stored.document()
        if from_label_selector((budget.get("spec") or {}).get("selector"))(labels):
            matching.append((stored, budget))
    if not matching:
        return
    if len(matching) > 1:
        raise errors.internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    stored, budget = matching[0]
    if _ignores_unready(budget, pod):
        return
    _check_budget(budget)
    if is_dry_run:
        return
    status = budget["status"]
    status["disruptionsAllowed"] = int(status.get("disruptionsAllowed") or 0) - 1
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), name: objects.minting.now()}
    objects.put(budgets, stored, budget)


def _ignores_unready(budget: Document, pod: Document) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return int(status.get("currentHealthy") or 0) >= int(status.get("desiredHealthy") or 0) > 0


def _check_budget(budget: Document) -> None:
    name, status = budget["metadata"]["name"], budget.setdefault("status", {})
    generation = int(budget["metadata"].get("generation") or 0)
    sentence = "Cannot evict pod as it would violate the pod's disruption budget."

    def refusal(message: str, retry_after_s: int) -> errors.ApiError:
        return errors.too_many_requests(sentence, retry_after_s, [{"reason": "DisruptionBudget", "message": message}])

    if int(status.get("observedGeneration") or 0) < generation:
        raise refusal(f"The disruption budget {name} is still being processed by the server.", EVICTION_RETRY_S)
    allowed = int(status.get("disruptionsAllowed") or 0)
    if allowed <= 0:
        wanted, healthy = status.get("desiredHealthy") or 0, status.get("currentHealthy") or 0
        raise refusal(f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently", 0)
    if len(status.get("disruptedPods") or ()) > DISRUPTED_PODS_MAX:
        raise refusal("DisruptedPods map too big - too many evictions not confirmed by PDB controller", 0)


# -- scale -------------------------------------------------------------------------------------------------------


def scale_of(resource: Resource, document: Document) -> Document:
    """Returns the autoscaling/v1 Scale of a workload."""
    metadata = document["metadata"]
    spec, status = document.get("spec") or {}, document.get("status") or {}
    kept = {
        key: metadata[key]
        for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if key in metadata
    }
    if resource.is_custom:
        return _custom_scale(resource, document, kept)
    scale: Document = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": int(spec.get("replicas") or 0)},
        "status": {"replicas": int(status.get("replicas") or 0)},
    }
    selector = spec.get("selector")
    if selector:
        scale["status"]["selector"] = selector_text(selector)
    return scale


def _custom_scale(resource: Resource, document: Document, metadata: Document) -> Document:
    paths = (resource.schema or {}).get("scale") or {}
    scale: Document = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": int(_at(document, paths.get("specReplicasPath", "")) or 0)},
        "status": {"replicas": int(_at(document, paths.get("statusReplicasPath", "")) or 0)},
    }
    label_path = paths.get("labelSelectorPath")
    if label_path:
        scale["status"]["selector"] = _at(document, label_path) or ""
    return scale


def _at(document: Any, path: str) -> Any:
    for part in path.strip(".").split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def apply_scale(resource: Resource, document: Document, scale: Document) -> Document:
    """Sets the replicas of a Scale in the workload's document."""
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        cause = errors.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise errors.invalid("autoscaling", "Scale", document["metadata"]["name"], [cause])
    paths = (resource.schema or {}).get("scale") if resource.is_custom else None
    place = (paths or {}).get("specReplicasPath", ".spec.replicas").strip(".").split(".")
    holder = document
    for part in place[:-1]:
        holder = holder.setdefault(part, {})
    holder[place[-1]] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        document["metadata"]["resourceVersion"] = version
    return document
