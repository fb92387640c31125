"""HTTP extenders in a domain's configuration: the fields of kubescheduler.config.k8s.io/v1, validated as upstream."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta

from multisched.config.sections import After, Seconds, Section
from multisched.model.resources import is_extended_resource
from multisched.model.selectors import is_qualified_name

EXTENDERS_MAX: Final = 16
EXTENDER_WEIGHT_MAX: Final = 2**24
"""With this limit, weight * 10 * a 32-bit score fits into 64 bits."""

TIMEOUT_DEFAULT_S: Final = 5.0
MANAGED_RESOURCES_MAX: Final = 64


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if is_good and parts.username is not None:
        raise ValueError("contains credentials, which are never sent to an extender; remove them")
    if not is_good or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not a valid extender URL; write for example http://127.0.0.1:8888/scheduler")
    return text


def _extended_resource(name: str) -> str:
    if not is_qualified_name(name) or not is_extended_resource(name):
        raise ValueError(f"{name!r} is not an extended resource; write for example example.com/fpga")
    return name


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is not base64") from error
    return text


Verb = Annotated[str, Meta(max_length=256, pattern=r"^[A-Za-z0-9._~/-]*$")]
Base64 = Annotated[str, Meta(max_length=256 * 1024), After(_base64)]


class ManagedResource(Section, frozen=True):
    """An extended resource that the extender manages."""

    name: Annotated[str, Meta(max_length=317), After(_extended_resource)]
    """Name of the resource, for example example.com/fpga."""
    ignored_by_scheduler: bool = False
    """NodeResourcesFit ignores the resource, since the extender checks it."""


class ExtenderTls(Section, frozen=True):
    """CA and client certificate for an https extender. Data fields are base64-encoded PEM and take precedence over files."""

    insecure: bool = False
    """Accept any certificate."""
    server_name: Annotated[str, Meta(max_length=253)] = ""
    """The name in its certificate. Default: the host name of the URL."""
    ca_file: str = ""
    """CA certificates to trust. Default: those of the system."""
    cert_file: str = ""
    """Client certificate."""
    key_file: str = ""
    """Key of the client certificate."""
    ca_data: Base64 = ""
    """Used instead of caFile."""
    cert_data: Base64 = ""
    """Used instead of certFile."""
    key_data: Base64 = ""
    """Used instead of keyFile."""

    @property
    def has_ca(self) -> bool:
        return bool(self.ca_file or self.ca_data)

    def __post_init__(self) -> None:
        if self.insecure and self.has_ca:
            raise ValueError("insecure accepts any certificate, so a CA has no effect; remove one")
        if bool(self.cert_file or self.cert_data) != bool(self.key_file or self.key_data):
            raise ValueError("certificate and key must be set together; set both or neither")


class ExtenderConfig(Section, frozen=True):
    """An HTTP extender, as in kube-scheduler: called after all filters, for scores, for preemption and for binding."""

    url_prefix: Annotated[str, Meta(max_length=2048), After(_url)]
    """URL of the extender; a slash and the verb are appended."""
    filter_verb: Verb = ""
    """Verb that filters the nodes that passed all plugins. Empty: not called."""
    prioritize_verb: Verb = ""
    """Verb that scores nodes, 0..10; scores are multiplied by 10 * weight. If it fails, it is ignored, as upstream."""
    preempt_verb: Verb = ""
    """Verb that selects among the candidate nodes of a preemption."""
    bind_verb: Verb = ""
    """Verb that binds pods, instead of the profile's Bind plugins."""
    weight: Annotated[int, Meta(ge=0, le=EXTENDER_WEIGHT_MAX)] = 0
    """Multiplier of its scores; at least 1 with prioritizeVerb."""
    http_timeout_s: Seconds = TIMEOUT_DEFAULT_S
    """Time limit of one call, including the connection."""
    node_cache_capable: bool = False
    """The extender caches nodes: requests have node names only. Otherwise, each request has complete nodes."""
    managed_resources: Annotated[tuple[ManagedResource, ...], Meta(max_length=MANAGED_RESOURCES_MAX)] = ()
    """The extender is called only for pods that request one of these. Empty: for every pod."""
    ignorable: bool = False
    """If the extender fails, scheduling continues without it."""
    tls_config: ExtenderTls = ExtenderTls()
    """TLS settings of an https extender."""

    def __post_init__(self) -> None:
        if self.prioritize_verb and self.weight < 1:
            raise ValueError("prioritizeVerb needs a weight of at least 1; set weight")
        if not (self.filter_verb or self.prioritize_verb or self.preempt_verb or self.bind_verb):
            raise ValueError(
                "has no verb and would never be called; set a verb such as filterVerb, or remove the extender"
            )

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url_prefix).scheme == "https"

    @property
    def ignored_resources(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.managed_resources if r.ignored_by_scheduler)


def refuse_conflicts(extenders: tuple[ExtenderConfig, ...]) -> None:
    """Raises ValueError for extenders that conflict with each other."""
    if sum(bool(e.bind_verb) for e in extenders) > 1:
        raise ValueError("only one extender can bind; remove the other bindVerb")
    names = [r.name for e in extenders for r in e.managed_resources]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is managed by two extenders; remove it from one")
