"""The configuration as frozen values: `apiVersion: multisched.io/v1`, `kind: MultischedConfiguration`.

Owns names, types, bounds and defaults of every setting, each with the sentence that explains it. The sentences become
the JSON Schema and the comments of `config/default.yaml`. Names are camelCase in files; in code they end in their unit.
Reading, cross checks and plugin lookup are `config`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic.alias_generators import to_pascal

from multisched.config.extenders import EXTENDERS_MAX, ExtenderConfig, refuse_conflicts
from multisched.config.sections import Seconds, Section, format_duration
from multisched.framework.dependency import Isolation
from multisched.model.limited_toleration import LimitedToleration, PodRule
from multisched.model.selectors import LabelSelector, Operator, Requirement, Toleration, parse_int64
from multisched.model.server_url import scheme_of

API_VERSION: Final = "multisched.io/v1"
KIND: Final = "MultischedConfiguration"
BUILT_IN_DOMAINS: Final = ("forecast", "gpu", "job")
DOMAINS_MAX: Final = 32


def _ip_address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IP address; write for instance 127.0.0.1 or 0.0.0.0") from error


def _base_url(text: str) -> str:
    if not scheme_of(text):
        raise ValueError(f"{text!r} is no address of a server; write https://HOST:PORT")
    return text.rstrip("/")


_NAME = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_SCHEDULER_NAME = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
SchedulerName = Annotated[str, Field(pattern=_SCHEDULER_NAME)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
ResourceName = Annotated[str, Field(min_length=1, max_length=317)]


class Expression(Section):
    """One `key operator values` test on a node's labels."""

    key: LabelKey
    """The label."""
    operator: Operator
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: tuple[LabelValue, ...] = Field(default=(), max_length=100)
    """In and NotIn need at least one, Gt and Lt exactly one integer, the others none."""

    @model_validator(mode="after")
    def _count_values(self) -> Self:
        count = len(self.values)
        match self.operator:
            case Operator.IN | Operator.NOT_IN if not count:
                raise ValueError(f"{self.operator.value} needs at least one value")
            case Operator.EXISTS | Operator.DOES_NOT_EXIST if count:
                raise ValueError(f"{self.operator.value} takes no values")
            case Operator.GT | Operator.LT if count != 1 or parse_int64(self.values[0]) is None:
                raise ValueError(f"{self.operator.value} takes exactly one integer")
        return self


class Selector(Section):
    """A label selector; everything in it must hold."""

    match_labels: Mapping[LabelKey, LabelValue] = {}
    """Labels with exactly these values."""
    match_expressions: tuple[Expression, ...] = Field(default=(), max_length=64)
    """Further tests on labels."""

    @model_validator(mode="after")
    def _refuse_empty(self) -> Self:
        if not self.match_labels and not self.match_expressions:
            raise ValueError(
                "selects every node or pod; name matchLabels or matchExpressions, or leave the selector out"
            )
        return self

    def compile(self) -> LabelSelector:
        """Requirements in a fixed order, so that equal selectors are equal values however they were written."""
        found = {Requirement(key, Operator.IN, (value,)) for key, value in self.match_labels.items()}
        found |= {Requirement(e.key, e.operator, tuple(sorted(set(e.values)))) for e in self.match_expressions}
        return LabelSelector(tuple(sorted(found, key=lambda r: (r.key, r.operator.value, r.values))))


class NodeRule(Enum):
    """Which unlabelled nodes are at home in a domain without a selector."""

    GPU = "gpu"
    """Nodes with allocatable GPUs."""
    VIRTUAL = "virtual"
    """Virtual nodes: the virtual-kubelet taint, or the label `type=virtual-kubelet`."""
    REST = "rest"
    """Every node that no other domain claims."""
    LABELLED = "labelled"
    """None but those labelled `multisched.io/domain: NAME`."""


class Nodes(Section):
    """The home nodes of a domain. Nodes labelled `multisched.io/domain: NAME` always belong to it, and only to it."""

    rule: NodeRule | None = None
    """gpu (allocatable GPUs), virtual (virtual-kubelet), rest (all that nobody else claims) or labelled (labelled only).
    Without rule and selector: gpu for the domain gpu, virtual for job, labelled for a domain with loans, else rest."""
    selector: Selector | None = None
    """Nodes with these labels, instead of a rule."""

    @model_validator(mode="after")
    def _refuse_both(self) -> Self:
        if self.rule is not None and self.selector is not None:
            raise ValueError("a rule and a selector exclude each other; remove one")
        return self


class Loan(Section):
    """Nodes of another domain that this one may use too."""

    lender: str = Field(alias="from")
    """The domain whose home nodes they are."""
    selector: Selector | None = None
    """Which of its nodes; without, all."""


WEIGHT_MAX: Final = 10_000
"""So that the totals of all plugins fit into 32 bits."""

PointPlugins = Annotated[tuple[str, ...] | None, Field(max_length=256)]


class PluginEntry(Section):
    """One enabled plugin: a new one, or other settings for one of the base."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """A name of `multisched plugins list`, or `package.module:Class`."""
    weight: int | None = Field(default=None, ge=0, le=WEIGHT_MAX)
    """Multiplies its scores; 0 filters without scoring. Without: the base's, or 1."""
    args: Mapping[str, Any] | None = None
    """The plugin's own settings, instead of the base's."""
    isolation: Isolation | None = None
    """Where Filter and Score run: inline, thread or process."""
    timeout_s: Seconds | None = None
    """How long an isolated Filter or Score may take."""


class Plugins(Section):
    """Changes to the base's plugins, applied in this order: disabled, then enabled."""

    disabled: tuple[str, ...] = Field(default=(), max_length=256)
    """Plugins of the base to leave out; "*" leaves out all."""
    enabled: tuple[PluginEntry, ...] = Field(default=(), max_length=256)
    """Plugins to add, or to change where they stand."""


class Points(Section):
    """The plugins that run at an extension point, in their order there. A point that is left out runs every plugin of the
    profile that has it, in the profile's order."""

    pre_enqueue: PointPlugins = None
    """Before a pod may enter the queue."""
    queue_sort: PointPlugins = None
    """The order of the queue; exactly one."""
    pre_filter: PointPlugins = None
    """Once per attempt."""
    filter: PointPlugins = None
    """Which nodes can take the pod."""
    post_filter: PointPlugins = None
    """When no node can."""
    pre_score: PointPlugins = None
    """Before scores."""
    score: PointPlugins = None
    """Which node is best. NormalizeScore goes with it."""
    reserve: PointPlugins = None
    """When the pod is assumed on a node, or given up."""
    permit: PointPlugins = None
    """The last gate."""
    pre_bind: PointPlugins = None
    """Before the bind; may wait."""
    bind: PointPlugins = None
    """Posts the binding."""
    post_bind: PointPlugins = None
    """After the bind."""

    def by_point(self) -> dict[str, tuple[str, ...]]:
        """PreFilter -> names, as the framework calls the points."""
        named = ((to_pascal(name), getattr(self, name)) for name in type(self).model_fields)
        return {point: names for point, names in named if names is not None}


class ProfileConfig(Section):
    """The plugins of a domain."""

    base: Literal["forecast", "gpu", "job", "default"] | None = None
    """The profile to start from: a built-in domain's, or `default`. Without: the domain's own if built in, else default."""
    queue_sort: str | None = None
    """The plugin that orders the queue, instead of the base's: QOSSort, PrioritySort or one of your own."""
    plugins: Plugins = Plugins()
    """Changes to the base."""
    points: Points = Points()
    """Which plugins run at an extension point, where that is not simply all that have it."""


class Concurrency(Section):
    """How much of a domain happens at once."""

    cycles: int = Field(default=8, ge=1, le=256)
    """Scheduling cycles that may wait for outside answers at the same time."""
    bind_workers: int = Field(default=64, ge=1, le=1024)
    """Binds under way at the same time. The smaller of this and maxInFlightBinds counts; PreBind has its own bound."""
    max_in_flight_binds: int = Field(default=64, ge=1, le=1024)
    """The most binding requests on the wire; the adaptive limit moves below it. The smaller of this and bindWorkers counts."""


class Queue(Section):
    """How long refused pods wait."""

    initial_backoff_s: Seconds = Field(default=1.0, validate_default=False)
    """After the first failed attempt; doubles with each."""
    max_backoff_s: Seconds = Field(default=10.0, validate_default=False)
    """The longest backoff."""
    unschedulable_flush_s: Seconds = Field(default=300.0, validate_default=False)
    """An unschedulable pod is tried again after this long even if no event could help it."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.initial_backoff_s > self.max_backoff_s:
            raise ValueError("initialBackoff is longer than maxBackoff")
        return self


class PodRuleConfig(Section):
    """Pods to which any of these applies."""

    requests: tuple[ResourceName, ...] = Field(default=(), max_length=64)
    """They request some of one of these resources."""
    annotations: tuple[LabelKey, ...] = Field(default=(), max_length=64)
    """They have one of these annotations, whatever it says."""
    selector: Selector | None = None
    """Their labels match."""

    @model_validator(mode="after")
    def _refuse_empty(self) -> Self:
        if not self.requests and not self.annotations and self.selector is None:
            raise ValueError("selects no pod; name requests, annotations or a selector, or leave it out to select all")
        return self

    def compile(self) -> PodRule:
        """The model's value."""
        return PodRule(self.requests, self.annotations, self.selector.compile() if self.selector else None)


class TolerationConfig(Section):
    """A toleration, as in a pod, and which pods are given it."""

    key: Annotated[str, Field(max_length=317)] = ""
    """Of the taint. Empty, with Exists: all taints."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal: the taint has this value. Exists: whatever it has."""
    value: Annotated[str, Field(max_length=63)] = ""
    """Of the taint, with Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty: all effects."""
    pods: PodRuleConfig | None = None
    """The pods of the domain that are given it: those to which any of this applies. Without: all."""

    @model_validator(mode="after")
    def _as_upstream(self) -> Self:
        if not self.key and self.operator != "Exists":
            raise ValueError("an empty key needs the operator Exists")
        if self.operator == "Exists" and self.value:
            raise ValueError("the operator Exists takes no value")
        return self

    def compile(self) -> Toleration:
        """The model's value."""
        fields = self.key, self.operator, self.value, self.effect
        return Toleration(*fields) if self.pods is None else LimitedToleration(*fields, self.pods.compile())


class Policy(Section):
    """What the domain adds to its pods while scheduling them; pods themselves are never edited."""

    tolerations: tuple[TolerationConfig, ...] | None = Field(default=None, max_length=64)
    """Taints that pods of the domain tolerate. Without: the built-in domain's."""

    def compile(self) -> tuple[Toleration, ...]:
        """The model's values."""
        return tuple(t.compile() for t in self.tolerations or ())


class DomainConfig(Section):
    """One scheduler: its names, its nodes, its plugins."""

    name: Annotated[str, Field(pattern=_NAME)]
    """Label of metrics, part of the lease's name, value of the node label `multisched.io/domain`."""
    scheduler_names: tuple[SchedulerName, ...] = Field(default=(), max_length=16)
    """The spec.schedulerName of its pods. Without: NAME-scheduler."""
    nodes: Nodes = Nodes()
    """Its home nodes."""
    loans: tuple[Loan, ...] = Field(default=(), max_length=DOMAINS_MAX)
    """Nodes of other domains it may use too."""
    profile: ProfileConfig = ProfileConfig()
    """Its plugins."""
    concurrency: Concurrency = Concurrency()
    """How much happens at once."""
    queue: Queue = Queue()
    """How long refused pods wait."""
    policy: Policy = Policy()
    """What it adds to its pods."""
    extenders: tuple[ExtenderConfig, ...] = Field(default=(), max_length=EXTENDERS_MAX)
    """HTTP extenders, asked in this order, ignorable ones last."""

    @model_validator(mode="after")
    def _extenders_agree(self) -> Self:
        refuse_conflicts(self.extenders)
        return self


class LeaseConfig(Section):
    """Leader election: one Lease for all domains, or one per domain."""

    enabled: bool = True
    """False only where a single process can run."""
    namespace: Annotated[str, Field(max_length=63)] = ""
    """Where the Leases are. Empty: the namespace the program runs in, outside a cluster kube-system."""
    name_prefix: Annotated[str, Field(pattern=_NAME)] = "multisched"
    """The Lease is called PREFIX-DOMAIN, by the first of the domains that share it."""
    per_domain: bool = False
    """
    True: domains without loans between them have a Lease each, and replicas share them. A quota's max, and affinity
    across nodes, then hold within the domains of one replica only.
    """
    duration_s: Seconds = Field(default=15.0, validate_default=False)
    """Another process may take the Lease this long after its last renewal."""
    renew_deadline_s: Seconds = Field(default=10.0, validate_default=False)
    """The holder stops binding this long after its last successful renewal."""
    retry_period_s: Seconds = Field(default=2.0, validate_default=False)
    """Time between two tries."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.duration_s != int(self.duration_s):
            raise ValueError("duration must be whole seconds: a Lease has no place for less")
        if not self.duration_s > self.renew_deadline_s:
            raise ValueError("duration must be longer than renewDeadline")
        if not self.renew_deadline_s > 1.2 * self.retry_period_s:
            raise ValueError("renewDeadline must be longer than 1.2 times retryPeriod (its jitter)")
        return self


class Tls(Section):
    """The server's certificate. Files are read again when they change."""

    cert_file: str | None = None
    """PEM, with its chain."""
    key_file: str | None = None
    """PEM, without a password."""
    self_signed: bool = False
    """Makes a certificate at each start, as kube-scheduler does: enough for probes, and for scrapers that do not verify."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("certFile and keyFile belong together")
        if self.self_signed and self.cert_file is not None:
            raise ValueError("selfSigned and certFile exclude each other; remove one")
        return self

    @property
    def is_on(self) -> bool:
        return self.self_signed or self.cert_file is not None

    def notes(self) -> Iterator[str]:
        """Files that are not on this machine: the program may run on another one."""
        for name, file in (("certFile", self.cert_file), ("keyFile", self.key_file)):
            if file is not None and not Path(file).is_file():
                yield f"server.tls.{name}: there is no file {file} on this machine; without it the program does not start"


class ServerConfig(Section):
    """The HTTP server: /livez, /readyz, /metrics, /api/v1."""

    enabled: bool = True
    """False: no port at all."""
    bind_address: Annotated[str, Field(max_length=64), AfterValidator(_ip_address)] = "127.0.0.1"
    """An IP address. Anything but loopback needs tls."""
    port: int = Field(default=10260, ge=0, le=65535)
    """0: any free one."""
    advertised_url: Annotated[str, Field(max_length=256), AfterValidator(_base_url)] | None = None
    """Where a command that asked a standby finds the leader, as its Lease says. Without: the pod's IP (POD_IP), or what is bound."""
    probe_port: int | None = Field(default=None, ge=0, le=65535)
    """A second port for /livez and /readyz alone, over plain HTTP, that answers however busy the first is. Without: none."""
    tls: Tls = Tls()
    """Without a certificate the server speaks HTTP, on loopback only."""
    authentication: bool | None = None
    """Ask the API server who may read /metrics and /api (TokenReview, SubjectAccessReview). Without: yes with tls."""

    quota_webhook: bool = False
    """Answer AdmissionReviews of quotas at /validate/quotas, whoever asks: kube-apiserver sends no token."""

    @property
    def is_authenticating(self) -> bool:
        return self.tls.is_on if self.authentication is None else self.authentication

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.bind_address).is_loopback

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.probe_port and self.probe_port == self.port:
            raise ValueError(f"probePort must be another port than port ({self.port})")
        return self

    @model_validator(mode="after")
    def _refuse_open(self) -> Self:
        if not self.is_loopback and not self.tls.is_on:
            raise ValueError(
                f"without tls only loopback is served, not {self.bind_address}; set tls.selfSigned or files"
            )
        if not self.is_loopback and not self.is_authenticating:
            raise ValueError("authentication may be off on loopback only")
        return self


class ClientConfig(Section):
    """How the API server is asked."""

    writes_per_second: int = Field(default=5000, ge=1, le=100_000)
    """Ceiling of all writes; the API server's own 429 is the real limit."""
    bind_timeout_s: Seconds = Field(default=5.0, validate_default=False)
    """Deadline of one binding request, on both sides."""
    audit_period_s: Seconds = Field(default=60.0, validate_default=False)
    """How often the cache is compared with a list of the API server."""


VERIFY_MIN_S: Final = 10.0
"""Each time all pods are listed."""


class VerifyConfig(Section):
    """The judge of `multisched verify` beside the running program, by lists of its own, in a process of its own."""

    every_s: Seconds | None = None
    """How often it looks, 10s at least. Without: never."""

    @model_validator(mode="after")
    def _refuse_haste(self) -> Self:
        if self.every_s is not None and self.every_s < VERIFY_MIN_S:
            raise ValueError(
                f"every: {format_duration(self.every_s)} is too often; it lists all pods: write 10s or more"
            )
        return self


class LoggingConfig(Section):
    """What the program writes to its standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are written."""
    format: Literal["auto", "json", "text"] = "auto"
    """One JSON object per line, or text for people. auto: text on a terminal, JSON elsewhere."""

    @field_validator("format", mode="before")
    @classmethod
    def _former_name(cls, value: object) -> object:
        """Version 0.1.0 called text console."""
        return "text" if value == "console" else value


class MetricsConfig(Section):
    """What /metrics shows."""

    kube_scheduler_names: bool = False
    """Show metrics under kube-scheduler's own names (scheduler_...) as well, for dashboards and alerts made for it."""


class Configuration(Section):
    """One file configures one deployment."""

    api_version: Literal["multisched.io/v1"]
    """The version of this file's format."""
    kind: Literal["MultischedConfiguration"]
    """What this file is."""
    domains: tuple[DomainConfig, ...] = Field(
        default_factory=lambda: tuple(DomainConfig(name=name) for name in BUILT_IN_DOMAINS),
        min_length=1,
        max_length=DOMAINS_MAX,
    )
    """The schedulers of this deployment. Without: forecast, gpu and job with their defaults."""
    lease: LeaseConfig = LeaseConfig()
    """Leader election."""
    server: ServerConfig = ServerConfig()
    """Health, metrics and API."""
    client: ClientConfig = ClientConfig()
    """How the API server is asked."""
    logging: LoggingConfig = LoggingConfig()
    """What is logged."""
    metrics: MetricsConfig = MetricsConfig()
    """What is shown to Prometheus."""
    verify: VerifyConfig = VerifyConfig()
    """Whether pods that stand against a required rule are looked for, whoever placed them."""

    @model_validator(mode="after")
    def _bind_before_the_lease_ends(self) -> Self:
        margin_s = self.lease.duration_s - self.lease.renew_deadline_s
        if self.lease.enabled and self.client.bind_timeout_s > margin_s:
            raise ValueError(
                "client.bindTimeout must not be longer than lease.duration - lease.renewDeadline:"
                " a late bind could meet the next leader's"
            )
        return self

    @property
    def served(self) -> frozenset[str]:
        """Every schedulerName that some domain has."""
        return frozenset(name for domain in self.domains for name in domain.scheduler_names)

    def domain(self, name: str) -> DomainConfig:
        """Raises KeyError for one that is not configured."""
        for domain in self.domains:
            if domain.name == name:
                return domain
        raise KeyError(name)
