"""Small clusters as the API's JSON. They are built here, as the judge shares nothing with the scheduler and its kits."""

from __future__ import annotations

from typing import Any

from multisched.verify import Domain, Finding, Judge, judge

Document = dict[str, Any]
Told = tuple[str, Document]

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"


def at(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def make_node(name: str, *, labels: dict[str, str] | None = None, zone: str = "", **fields: Any) -> Told:
    """`taints`, `unschedulable`, and amounts of resources by name: `cpu`, `memory`, `pods`, or in `more`."""
    room = {"cpu": "4", "memory": "8Gi", "pods": "10", **fields.pop("more", {})}
    room |= {resource: fields.pop(resource) for resource in ("cpu", "memory", "pods") if resource in fields}
    metadata = {
        "name": name,
        "labels": {HOST: name, **({ZONE: zone} if zone else {}), **(labels or {})},
        "creationTimestamp": fields.pop("created", at(0)),
    }
    status = {"allocatable": room, "capacity": fields.pop("capacity", room)}
    return "Node", {"kind": "Node", "metadata": metadata, "spec": fields, "status": status}


def make_pod(name: str, node: str, *, second: int = 60, namespace: str = "default", **fields: Any) -> Told:
    """`labels`, `annotations`, `requests`, `status`, `phase`; what else is named goes to its spec."""
    container: Document = {"name": "main", "resources": {"requests": fields.pop("requests", {})}}
    if "ports" in fields:
        container["ports"] = fields.pop("ports")
    metadata: Document = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    metadata |= {"creationTimestamp": at(second), "labels": fields.pop("labels", {})}
    metadata |= {"annotations": fields.pop("annotations", {})}
    if fields.pop("is_terminating", False):
        metadata["deletionTimestamp"] = at(second + 1)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(second)}
    status = {"phase": fields.pop("phase", "Running"), "conditions": [scheduled], **fields.pop("status", {})}
    spec = {"nodeName": node, "containers": [container], **fields}
    return "Pod", {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def make_claim(name: str, volume: str = "", *, mode: str = "ReadWriteOnce", namespace: str = "default") -> Told:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    spec = {"accessModes": [mode], "storageClassName": "disks", **({"volumeName": volume} if volume else {})}
    return "PersistentVolumeClaim", {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def make_volume(name: str, claim: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Told:
    reference = {"namespace": "default", "name": claim, "uid": f"uid-{claim}"}
    document = {"metadata": {"name": name, "labels": labels or {}}, "spec": {"claimRef": reference, **spec}}
    return "PersistentVolume", {"kind": "PersistentVolume", **document}


def using(*claims: str) -> list[Document]:
    return [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]


def term(key: str = HOST, **fields: Any) -> Document:
    """A required term about pods of app=web, unless told otherwise."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}, **fields}


def affinity(*terms: Document) -> Document:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def anti_affinity(*terms: Document) -> Document:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def node_affinity(*terms: Document) -> Document:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def spread(key: str = ZONE, **fields: Any) -> list[Document]:
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**constraint, "labelSelector": {"matchLabels": {"app": "web"}}, **fields}]


WEB = {"app": "web"}


def found(*objects: Told, domains: tuple[Domain, ...] = ()) -> list[Finding]:
    return judge(objects, domains=domains)


def certain(*objects: Told, domains: tuple[Domain, ...] = ()) -> set[tuple[str, str]]:
    """(pod, rule) of what stands wrong for sure."""
    return {(one.pod.removeprefix("default/"), one.rule) for one in found(*objects, domains=domains) if one.is_sure}


def possible(*objects: Told, domains: tuple[Domain, ...] = ()) -> set[tuple[str, str]]:
    return {(one.pod.removeprefix("default/"), one.rule) for one in found(*objects, domains=domains) if not one.is_sure}


def problems(*objects: Told) -> list[tuple[str, str]]:
    told = Judge()
    for kind, document in objects:
        told.add(kind, document)
    return [(one.object, one.problem) for one in told.problems]
