"""Conversion of an HTTP extender of a KubeSchedulerConfiguration."""

from __future__ import annotations

from typing import Any

from multisched.config.document import Document, Path
from multisched.config.extenders import ExtenderConfig
from multisched.config.findings import Findings
from multisched.config.kube.schema import KubeExtender, KubeExtenderTls
from multisched.config.sections import DURATION_MAX_S, format_duration
from multisched.config.structure import validated_part


def extender_of(at: Path, extender: KubeExtender, document: Document, findings: Findings) -> dict[str, Any]:
    """Returns the `extenders` entry. Adds problems to `document`, and differences to `findings`."""
    found: dict[str, Any] = {"urlPrefix": extender.url_prefix}
    found |= _given(
        filterVerb=extender.filter_verb,
        prioritizeVerb=extender.prioritize_verb,
        preemptVerb=extender.preempt_verb,
        bindVerb=extender.bind_verb,
    )
    if extender.prioritize_verb:
        found["weight"] = extender.weight
    if extender.http_timeout:
        found["httpTimeout"] = _timeout(at, extender.http_timeout, document)
    found |= _given(nodeCacheCapable=extender.node_cache_capable, ignorable=extender.ignorable)
    if extender.managed_resources:
        found["managedResources"] = [
            {"name": r.name, **({"ignoredByScheduler": True} if r.ignored_by_scheduler else {})}
            for r in extender.managed_resources
        ]
    found |= _given(tlsConfig=_tls(at, extender, findings))
    validated_part(document, at, found, ExtenderConfig)
    return found


def _timeout(at: Path, timeout_s: float, document: Document) -> str:
    if not 0 < timeout_s <= DURATION_MAX_S:
        document.add((*at, "httpTimeout"), "must be longer than 0s and at most a day")
        return "5s"
    return format_duration(max(timeout_s, 0.001))


def _tls(at: Path, extender: KubeExtender, findings: Findings) -> dict[str, Any]:
    config = extender.tls_config or KubeExtenderTls()
    found: dict[str, Any] = {"insecure": True} if config.insecure else {}
    found |= _given(
        serverName=config.server_name,
        caFile=config.ca_file,
        certFile=config.cert_file,
        keyFile=config.key_file,
        caData=config.ca_data,
        certData=config.cert_data,
        keyData=config.key_data,
    )
    has_ca = bool(config.ca_file or config.ca_data)
    if extender.enable_https and not has_ca and not config.insecure:
        found["insecure"] = True
        findings.note((*at, "enableHTTPS"), "without a CA any certificate is accepted, as upstream: tlsConfig.insecure")
    return found


def _given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
