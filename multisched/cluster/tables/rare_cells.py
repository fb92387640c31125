"""The cells of less common kinds: storage, networking, admission, autoscaling.

Source: pkg/printers/internalversion/printers.go, 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from multisched.cluster.base.resources import Document
from multisched.cluster.base.selectors import selector_text
from multisched.cluster.tables.text import NONE, UNSET, Cells, age, columns, listed, name_of, simple, spec_of, status_of


def _pod_template(document: Document, _now: datetime) -> tuple[Any, ...]:
    template = document.get("template") or {}
    containers = spec_of(template).get("containers") or []
    labels = (template.get("metadata") or {}).get("labels") or {}
    return (
        name_of(document),
        listed([entry.get("name", "") for entry in containers]),
        listed([entry.get("image", "") for entry in containers]),
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE,
    )


def _driver(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    tokens = [entry.get("audience", "") for entry in spec.get("tokenRequests") or ()]
    return (
        name_of(document),
        spec.get("attachRequired", True),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(tokens) or UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        age(document, now),
    )


def _attachment(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    attached = bool(status_of(document).get("attached"))
    return (
        name_of(document),
        spec.get("attacher") or "",
        volume,
        spec.get("nodeName") or "",
        attached,
        age(document, now),
    )


def _slice(document: Document, now: datetime) -> tuple[Any, ...]:
    ports = [str(port.get("port", "")) for port in document.get("ports") or ()]
    found = [address for entry in document.get("endpoints") or () for address in entry.get("addresses") or ()]
    shown = ports or [UNSET]
    return (
        name_of(document),
        document.get("addressType") or "",
        ",".join(shown),
        listed(found[:3]) if found else UNSET,
        age(document, now),
    )


def _ingress(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    reached = (status_of(document).get("loadBalancer") or {}).get("ingress") or ()
    addresses = ",".join(entry.get("ip") or entry.get("hostname") or "" for entry in reached)
    ports = "80, 443" if spec.get("tls") else "80"
    return (
        name_of(document),
        spec.get("ingressClassName") or NONE,
        ",".join(hosts) or "*",
        addresses,
        ports,
        age(document, now),
    )


def _scaler(document: Document, now: datetime) -> tuple[Any, ...]:
    spec, status = spec_of(document), status_of(document)
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return (
        name_of(document),
        f"{target.get('kind')}/{target.get('name')}",
        f"{len(spec.get('metrics') or ())} metrics" if spec.get("metrics") else NONE,
        UNSET if least is None else str(least),
        str(spec.get("maxReplicas") or 0),
        str(status.get("currentReplicas") or 0),
        age(document, now),
    )


def _policy(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    kind = spec.get("paramKind")
    shown = f"{kind.get('apiVersion')}/{kind.get('kind')}" if kind else UNSET
    return (name_of(document), len(spec.get("validations") or ()), shown, age(document, now))


def _policy_binding(document: Document, now: datetime) -> tuple[Any, ...]:
    spec = spec_of(document)
    param = spec.get("paramRef") or {}
    shown = "/".join(part for part in (param.get("namespace"), param.get("name")) if part) or UNSET
    return (name_of(document), spec.get("policyName") or "", shown, age(document, now))


_WEBHOOKS = Cells(columns("Name,Webhooks#,Age"), simple(lambda entry: len(entry.get("webhooks") or ())))
_ADMISSION = "admissionregistration.k8s.io"
RARE_CELLS: Mapping[str, Cells] = {
    "podtemplates": Cells(columns("Name,Containers,Images,Pod Labels"), _pod_template),
    "horizontalpodautoscalers.autoscaling": Cells(
        columns("Name,Reference,Targets,MinPods,MaxPods,Replicas,Age"), _scaler
    ),
    "csidrivers.storage.k8s.io": Cells(
        columns("Name,AttachRequired?,PodInfoOnMount?,StorageCapacity?,TokenRequests,RequiresRepublish?,Modes,Age"),
        _driver,
    ),
    "volumeattachments.storage.k8s.io": Cells(columns("Name,Attacher,PV,Node,Attached?,Age"), _attachment),
    "endpointslices.discovery.k8s.io": Cells(columns("Name,AddressType,Ports,Endpoints,Age"), _slice),
    "ingresses.networking.k8s.io": Cells(columns("Name,Class,Hosts,Address,Ports,Age"), _ingress),
    "networkpolicies.networking.k8s.io": Cells(
        columns("Name,Pod-Selector,Age"),
        simple(lambda entry: selector_text(spec_of(entry).get("podSelector") or {}) or NONE),
    ),
    f"mutatingwebhookconfigurations.{_ADMISSION}": _WEBHOOKS,
    f"validatingwebhookconfigurations.{_ADMISSION}": _WEBHOOKS,
    f"validatingadmissionpolicies.{_ADMISSION}": Cells(columns("Name,Validations#,ParamKind,Age"), _policy),
    f"validatingadmissionpolicybindings.{_ADMISSION}": Cells(columns("Name,PolicyName,ParamRef,Age"), _policy_binding),
}
