"""HTTP extenders as a domain's configuration has them: the fields of kubescheduler.config.k8s.io/v1, checked as upstream."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from multisched.config.sections import Seconds, Section
from multisched.model.resources import is_extended_resource
from multisched.model.selectors import is_qualified_name

EXTENDERS_MAX: Final = 16
EXTENDER_WEIGHT_MAX: Final = 2**24
"""Times ten times a score of 32 bits stays within 64."""

TIMEOUT_DEFAULT_S: Final = 5.0
MANAGED_RESOURCES_MAX: Final = 64


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if is_good and parts.username is not None:
        raise ValueError("holds credentials, which no extender is sent; remove them")
    if not is_good or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no address of an extender; write for instance http://127.0.0.1:8888/scheduler")
    return text


def _extended_resource(name: str) -> str:
    if not is_qualified_name(name) or not is_extended_resource(name):
        raise ValueError(f"{name!r} is no extended resource; write for instance example.com/fpga")
    return name


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is not base64") from error
    return text


Verb = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9._~/-]*$")]
Base64 = Annotated[str, Field(max_length=256 * 1024), AfterValidator(_base64)]


class ManagedResource(Section):
    """An extended resource that the extender looks after."""

    name: Annotated[str, Field(max_length=317), AfterValidator(_extended_resource)]
    """Of the resource, for instance example.com/fpga."""
    ignored_by_scheduler: bool = False
    """NodeResourcesFit does not look at it: the extender does."""


class ExtenderTls(Section):
    """How an https extender is trusted, and who we are to it. Data goes before files, and is PEM in base64."""

    insecure: bool = False
    """Takes any certificate."""
    server_name: Annotated[str, Field(max_length=253)] = ""
    """The name its certificate has; without, that of the URL."""
    ca_file: str = ""
    """Whom to trust. Without: the machine's authorities."""
    cert_file: str = ""
    """Who we are to it."""
    key_file: str = ""
    """The key of that certificate."""
    ca_data: Base64 = ""
    """In place of caFile."""
    cert_data: Base64 = ""
    """In place of certFile."""
    key_data: Base64 = ""
    """In place of keyFile."""

    @property
    def has_ca(self) -> bool:
        return bool(self.ca_file or self.ca_data)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.insecure and self.has_ca:
            raise ValueError("insecure takes any certificate, which leaves nothing for a CA to do; remove one")
        if bool(self.cert_file or self.cert_data) != bool(self.key_file or self.key_data):
            raise ValueError("a certificate and its key belong together; give both or neither")
        return self


class ExtenderConfig(Section):
    """An HTTP extender, as kube-scheduler has them: asked after all filters, for its scores, and for binding."""

    url_prefix: Annotated[str, Field(max_length=2048), AfterValidator(_url)]
    """Where it answers; a verb is appended after a slash."""
    filter_verb: Verb = ""
    """Asked which of the nodes left can take the pod. Empty: not asked."""
    prioritize_verb: Verb = ""
    """Asked for scores of 0..10, which count ten times weight. A failure leaves its scores out, as upstream."""
    preempt_verb: Verb = ""
    """Asked which of the nodes that preemption could free may be taken."""
    bind_verb: Verb = ""
    """Binds the pods it is asked about, instead of the profile's Bind plugins."""
    weight: int = Field(default=0, ge=0, le=EXTENDER_WEIGHT_MAX)
    """Multiplies its scores; at least 1 with prioritizeVerb."""
    http_timeout_s: Seconds = Field(default=TIMEOUT_DEFAULT_S, validate_default=False)
    """How long one answer may take, the connection included."""
    node_cache_capable: bool = False
    """It knows the nodes and is sent their names only; else all of every node, in each request."""
    managed_resources: tuple[ManagedResource, ...] = Field(default=(), max_length=MANAGED_RESOURCES_MAX)
    """It is asked only about pods that request one of these. Empty: about every pod."""
    ignorable: bool = False
    """Scheduling goes on without it when it fails."""
    tls_config: ExtenderTls = ExtenderTls()
    """How an https extender is trusted."""

    @model_validator(mode="after")
    def _as_upstream(self) -> Self:
        if self.prioritize_verb and self.weight < 1:
            raise ValueError("prioritizeVerb needs a weight of at least 1; set weight")
        if not (self.filter_verb or self.prioritize_verb or self.preempt_verb or self.bind_verb):
            raise ValueError("has no verb and would never be asked; set filterVerb, or remove it")
        return self

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url_prefix).scheme == "https"

    @property
    def ignored_resources(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.managed_resources if r.ignored_by_scheduler)


def refuse_conflicts(extenders: tuple[ExtenderConfig, ...]) -> None:
    """Raises ValueError for extenders that cannot stand side by side."""
    if sum(bool(e.bind_verb) for e in extenders) > 1:
        raise ValueError("only one extender can bind; remove the other bindVerb")
    names = [r.name for e in extenders for r in e.managed_resources]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is managed by two extenders; leave it to one")
