"""Reads manifests into a plan: the pods in them, and the objects that affect these pods.

Pure. `plan_of` reads one manifest, `plan_of_all` several that are tried together, such as the documents of one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode import DecodeError, Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.observe.explain_view import NotExplainedError
from multisched.shell.ingest import priority_classes
from multisched.shell.ingest.gang_objects import GANG_KINDS
from multisched.shell.ingest.priority_classes import PlannedPod, PriorityClass

_CONTAINERS: Final = ("initContainers", "containers")
MANIFESTS_MAX: Final = 100
"""Limit of objects in one plan."""
_KINDS: Final = {
    (kind.definition.group, kind.definition.name): kind for kind in (*GANG_KINDS, ObjectKind.PERSISTENT_VOLUME_CLAIM)
}
"""Kinds other than pods and workloads that a plan may contain, and that affect the pods."""


class Plan(msgspec.Struct, frozen=True):
    """Pods and objects to try together."""

    pods: tuple[PlannedPod, ...]
    objects: tuple[tuple[ObjectKind, ClusterObject], ...] = ()
    notes: tuple[str, ...] = ()

    def admitted(self, classes: Sequence[PriorityClass] | None, why: str = "") -> Plan:
        """Returns the plan with the priorities that the pods would get. Raises NotExplainedError."""
        pods = tuple(priority_classes.admitted(planned, classes, why) for planned in self.pods)
        return msgspec.structs.replace(self, pods=pods)


def plan_of(document: Mapping[str, Any], decoder: Decoder) -> Plan:
    """Returns the plan of one manifest. `decoder`: the program's. Raises NotExplainedError if it contains no pod."""
    return Plan((planned_pod(document, decoder),))


def plan_of_all(items: Sequence[Any], decoder: Decoder) -> Plan:
    """Returns the plan of several manifests. Raises NotExplainedError if they contain no pod."""
    if len(items) > MANIFESTS_MAX:
        text = f"the list has {len(items)} objects; at most {MANIFESTS_MAX} are tried at once"
        raise NotExplainedError(text, status=422)
    pods: list[PlannedPod] = []
    objects: list[tuple[ObjectKind, ClusterObject]] = []
    left_out: list[str] = []
    for number, item in enumerate(items, 1):
        kind = _kind_of(item)
        if kind is not None:
            objects.append((kind, _object(kind, item)))
        elif isinstance(item, Mapping) and not _has_pod(item):
            left_out.append(f"{item.get('kind', 'object')} {_part(item, 'metadata').get('name', number)}")
        else:
            pods.append(_numbered(item, number, decoder))
    if not pods:
        raise NotExplainedError("none of the objects contains a pod; give pods or workloads", status=422)
    notes = (f"these contain no pod and were left out: {', '.join(left_out)}",) if left_out else ()
    return Plan(tuple(pods), tuple(objects), notes)


def _numbered(item: Any, number: int, decoder: Decoder) -> PlannedPod:
    try:
        return planned_pod(item, decoder)
    except NotExplainedError as error:
        raise NotExplainedError(f"object {number}: {error}", status=error.status) from error


def _has_pod(item: Mapping[str, Any]) -> bool:
    spec = item.get("spec")
    is_workload = isinstance(spec, Mapping) and ("template" in spec or "jobTemplate" in spec)
    return is_workload or item.get("kind", "Pod") == "Pod"


def _kind_of(item: Any) -> ObjectKind | None:
    if not isinstance(item, Mapping):
        return None
    return _KINDS.get((str(item.get("apiVersion", "")).rpartition("/")[0], str(item.get("kind", ""))))


def _object(kind: ObjectKind, item: Mapping[str, Any]) -> ClusterObject:
    metadata = {"namespace": "default", **_part(item, "metadata")}
    try:
        return kind.definition.decode(orjson.dumps({**item, "metadata": metadata}))
    except (DecodeError, TypeError) as error:
        raise NotExplainedError(f"the {kind.definition.name} cannot be read: {error}", status=422) from error


def planned_pod(document: Mapping[str, Any], decoder: Decoder) -> PlannedPod:
    """Returns the pod of a manifest: a Pod, or the template of a workload. `decoder`: the program's. Raises NotExplainedError."""
    if not isinstance(document, Mapping):
        raise NotExplainedError("the manifest is not an object; give one Pod or one workload", status=422)
    metadata, spec = dict(_part(document, "metadata")), _part(document, "spec")
    is_template = False
    if document.get("kind") == "CronJob":
        spec = _part(_part(spec, "jobTemplate"), "spec")
    if "template" in spec:
        is_template = True
        template = _part(spec, "template")
        metadata |= {key: value for key, value in _part(template, "metadata").items() if key != "name"}
        spec = _part(template, "spec")
    elif document.get("kind", "Pod") != "Pod":
        raise NotExplainedError(f"a {document['kind']} contains no pod; give one Pod or one workload", status=422)
    if not spec.get("containers"):
        raise NotExplainedError("the manifest has no pod spec with containers", status=422)
    if spec.get("nodeName"):
        raise NotExplainedError(f"the pod has nodeName {spec['nodeName']}; remove it", status=422)
    name = metadata.get("name") or metadata.get("generateName") or "what-if"
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    kept |= {"name": name, "namespace": metadata.get("namespace") or "default", "uid": "what-if"}
    spec = {
        **spec,
        **{key: list(map(_with_requests, spec[key])) for key in _CONTAINERS if isinstance(spec.get(key), list)},
    }
    try:
        pod = decoder.pod(orjson.dumps({"metadata": kept, "spec": spec, "status": {"phase": "Pending"}}))
    except (DecodeError, TypeError) as error:
        raise NotExplainedError(f"the pod cannot be read: {error}", status=422) from error
    return PlannedPod(
        pod,
        f"{name}-" if is_template else str(name),
        str(spec.get("priorityClassName") or ""),
        spec.get("priority"),
        spec.get("preemptionPolicy"),
    )


def _with_requests(container: Any) -> Any:
    """Returns the container with its limits as requests where it has none, as the API server stores it."""
    resources = container.get("resources") if isinstance(container, Mapping) else None
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    if not isinstance(resources, Mapping) or not isinstance(limits, Mapping):
        return container
    requests = resources.get("requests") or {}
    if not isinstance(requests, Mapping):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the field; empty if it is missing. Raises NotExplainedError."""
    part = document.get(key)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise NotExplainedError(f"{key} of the manifest is not an object; write its fields below it", status=422)
    return part
