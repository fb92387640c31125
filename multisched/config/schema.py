"""The configuration as frozen values: `apiVersion: multisched.io/v1`, `kind: MultischedConfiguration`.

Owns names, types, bounds, defaults and descriptions of all settings. The descriptions appear in the JSON Schema and in the
comments of `config/default.yaml`. Names are camelCase in files; in code they end with their unit. Other modules of
`config` do the reading, cross checks and plugin lookup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from multisched.config.extenders import EXTENDERS_MAX, ExtenderConfig, refuse_conflicts
from multisched.config.sections import SHORT_FORM, After, Before, Seconds, Section, fields_of, format_duration
from multisched.forecasting.time_zones import why_no_zone
from multisched.framework.dependency import Isolation
from multisched.model.limited_toleration import LimitedToleration, PodRule
from multisched.model.objects import CPU
from multisched.model.quantity import QuantityError, parse_milli, parse_value
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
        raise ValueError(f"{text!r} is not an IP address; write for example 127.0.0.1 or 0.0.0.0") from error


def _base_url(text: str) -> str:
    if not scheme_of(text):
        raise ValueError(f"{text!r} is not a server URL; write https://HOST:PORT")
    return text.rstrip("/")


_NAME = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_SCHEDULER_NAME = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
SchedulerName = Annotated[str, Meta(pattern=_SCHEDULER_NAME)]
LabelKey = Annotated[str, Meta(min_length=1, max_length=317)]
LabelValue = Annotated[str, Meta(max_length=63)]
ResourceName = Annotated[str, Meta(min_length=1, max_length=317)]


class Expression(Section, frozen=True):
    """A requirement on a label: key, operator and values."""

    key: LabelKey
    """Label key."""
    operator: Operator
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: Annotated[tuple[LabelValue, ...], Meta(max_length=100)] = ()
    """In and NotIn need at least one, Gt and Lt exactly one integer, the others none."""

    def __post_init__(self) -> None:
        count = len(self.values)
        match self.operator:
            case Operator.IN | Operator.NOT_IN if not count:
                raise ValueError(f"{self.operator.value} needs at least one value")
            case Operator.EXISTS | Operator.DOES_NOT_EXIST if count:
                raise ValueError(f"{self.operator.value} takes no values")
            case Operator.GT | Operator.LT if count != 1 or parse_int64(self.values[0]) is None:
                raise ValueError(f"{self.operator.value} takes exactly one integer")


class Selector(Section, frozen=True):
    """A label selector; all its requirements must match."""

    match_labels: Mapping[LabelKey, LabelValue] = {}
    """Labels and their required values."""
    match_expressions: Annotated[tuple[Expression, ...], Meta(max_length=64)] = ()
    """Further requirements on labels."""

    def __post_init__(self) -> None:
        if not self.match_labels and not self.match_expressions:
            raise ValueError("selects every node or pod; set matchLabels or matchExpressions, or remove the selector")

    def compile(self) -> LabelSelector:
        """Returns the selector with sorted requirements, so that equivalent selectors are equal values."""
        found = {Requirement(key, Operator.IN, (value,)) for key, value in self.match_labels.items()}
        found |= {Requirement(e.key, e.operator, tuple(sorted(set(e.values)))) for e in self.match_expressions}
        return LabelSelector(tuple(sorted(found, key=lambda r: (r.key, r.operator.value, r.values))))


class NodeRule(Enum):
    """Selects the home nodes of a domain without a selector, among nodes without the label of a domain."""

    GPU = "gpu"
    """Nodes with allocatable GPUs."""
    VIRTUAL = "virtual"
    """Virtual nodes: the virtual-kubelet taint, or the label `type=virtual-kubelet`."""
    REST = "rest"
    """Every node that no other domain claims."""
    LABELLED = "labelled"
    """Only nodes with the label `multisched.io/domain: NAME`."""


class Nodes(Section, frozen=True):
    """The home nodes of a domain. Nodes labelled `multisched.io/domain: NAME` belong to that domain in any case."""

    rule: NodeRule | None = None
    """gpu (allocatable GPUs), virtual (virtual-kubelet), rest (all nodes that no other domain claims) or labelled (only by label).
    Default without a selector: gpu for the domain gpu, virtual for job, labelled for a domain with loans, otherwise rest."""
    selector: Selector | None = None
    """Nodes with these labels, instead of a rule."""

    def __post_init__(self) -> None:
        if self.rule is not None and self.selector is not None:
            raise ValueError("rule and selector are mutually exclusive; remove one")


DayName = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
TimeOfDay = Annotated[str, Meta(pattern=r"^([01]?[0-9]|2[0-3]):[0-5][0-9]$|^24:00$")]


class LoanHours(Section, frozen=True):
    """Hours of the week in which a loan is open."""

    begins: TimeOfDay = field(name="from")
    """Time of day, for instance "22:00"."""
    to: TimeOfDay
    """Time of day; on the next day if it is not after `from`."""
    days: Annotated[tuple[DayName, ...], Meta(max_length=7)] = ()
    """Days on which they begin. Default: all."""

    def __post_init__(self) -> None:
        if self.begins == "24:00":
            raise ValueError('from is "24:00"; write "00:00" and the day after')
        if self.begins.zfill(5) == self.to.zfill(5):
            raise ValueError('never opens: to equals from; for a whole day write from: "00:00", to: "24:00"')


RETURN_EXTRA_S: Final = 120.0
"""Default of `deadline`, after notice and grace."""


class LoanReturn(Section, frozen=True):
    """How the lender gets capacity back that pods of the borrower hold."""

    notice_s: Seconds
    """A pod of the borrower is evicted this long after it got a notice, if it has not ended by itself."""
    grace_s: Seconds = 30.0
    """Time that an evicted pod has to terminate; then it is deleted with a grace period of 1s."""
    deadline_s: Seconds | None = None
    """Time after the notice in which the capacity is given back: from deadline - grace on, pods are deleted even if
    PodDisruptionBudgets protect them. Default: notice + grace + 2m."""
    evictions_per_owner: Annotated[int, Meta(ge=1, le=1_000)] = 6
    """Evictions per hour of pods of one owner, for instance a Job. Once it is reached, pods of other owners are evicted first."""

    def __post_init__(self) -> None:
        if self.deadline_s is not None and self.deadline_s < self.notice_s + self.grace_s:
            raise ValueError("deadline is shorter than notice + grace; make it at least as long")


class LoanKind(Enum):
    """The capacity that is lent."""

    FREE = "free"
    """Capacity that no pod requests."""
    IDLE = "idle"
    """Capacity that pods of the lender request and do not use."""


class Loan(Section, frozen=True):
    """Nodes of another domain that this one may use, too. Without further settings, it may use all free capacity of these nodes."""

    lender: str = field(name="from")
    """The home domain of the nodes."""
    selector: Selector | None = None
    """Selects some of its nodes. Default: all."""
    kind: LoanKind = LoanKind.FREE
    """free: capacity that no pod requests. idle: capacity that is requested and not used, for pods that request kubernetes.io/batch-cpu
    or have the annotation multisched.io/idle-request."""
    resources: Annotated[tuple[ResourceName, ...], Meta(max_length=16)] = ()
    """The only resources that pods on loan may request. Default: cpu, memory and ephemeral-storage; cpu for the kind idle; without
    any of the following settings, all."""
    share_percent: Annotated[int, Meta(ge=1, le=100)] = 100
    """Percentage that is lent of the capacity that no pod requests."""
    threshold_percent: Annotated[int, Meta(ge=1, le=100)] = 75
    """For the kind idle: percentage of allocatable that lender and borrower may use together."""
    headroom: Mapping[ResourceName, str] = {}
    """Amounts kept free on each node for the lender: resource -> quantity."""
    foreign_reserve_percent: Annotated[int, Meta(ge=0, le=99)] = 0
    """Percentage of allocatable that is never lent, because schedulers outside this program use it. Default: there are none on these
    nodes; their pods are reported, and what they use is not lent."""
    hours: Annotated[tuple[LoanHours, ...], Meta(max_length=64)] = ()
    """Hours in which it is open. Outside them nothing is lent; with `return`, all capacity is given back by their end. Default: always."""
    time_zone: Annotated[str, Meta(max_length=64)] = "UTC"
    """IANA name of the time zone of `hours`."""
    returns: LoanReturn | None = field(default=None, name="return")
    """How the lender gets capacity back. Default: it waits until pods of the borrower end."""

    def __post_init__(self) -> None:
        if why := why_no_zone(self.time_zone):
            raise ValueError(f"timeZone: {why}")
        if self.kind is LoanKind.IDLE and self.returns is None:
            raise ValueError(
                'kind idle needs return: the lender may use at any time what it requests; write return: {notice: "30s"}'
            )
        if self.kind is LoanKind.IDLE and self.foreign_reserve_percent:
            raise ValueError(
                f"foreignReservePercent: {self.foreign_reserve_percent}: kind idle lends what pods of the lender request, which no other "
                "scheduler sees as free; remove foreignReservePercent"
            )
        for name, text in self.headroom.items():
            try:
                amount = parse_milli(text) if name == CPU else parse_value(text)
            except QuantityError as error:
                raise ValueError(f"headroom.{name}: {error}") from error
            if amount < 0:
                raise ValueError(f"headroom.{name}: {text!r} is negative")

    @property
    def is_limited(self) -> bool:
        """Reports whether it has settings other than its nodes. A loan without others is only the right to use the nodes."""
        return self != Loan(lender=self.lender, selector=self.selector)

    @property
    def is_separable(self) -> bool:
        """Reports whether lender and borrower can have separate Leases: what it lends can be divided into slices."""
        return self.is_limited and self.kind is LoanKind.FREE


WEIGHT_MAX: Final = 10_000
"""With this limit, total scores fit into 32 bits."""

PointPlugins = Annotated[tuple[str, ...], Meta(max_length=256)] | None


class PluginEntry(Section, frozen=True):
    """An enabled plugin: a new one, or changed settings of one in the base."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    """A name listed by `multisched plugins list`, or `package.module:Class`."""
    weight: Annotated[int, Meta(ge=0, le=WEIGHT_MAX)] | None = None
    """Multiplier of its scores; 0: the plugin does not score. Default: the base's, or 1."""
    args: Mapping[str, Any] | None = None
    """The plugin's arguments, instead of the base's."""
    isolation: Isolation | None = None
    """Where Filter and Score run: inline, thread or process."""
    timeout_s: Seconds | None = None
    """Time limit of an isolated Filter or Score."""


class Plugins(Section, frozen=True):
    """Changes to the base's plugins, applied in this order: disabled, then enabled."""

    disabled: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    """Plugins of the base to remove; "*" removes all."""
    enabled: Annotated[tuple[PluginEntry, ...], Meta(max_length=256)] = ()
    """Plugins to add, or to change without moving them."""


class Points(Section, frozen=True):
    """The plugins that run at an extension point, in order. A point that is not set runs every plugin of the profile that
    implements it, in the profile's order."""

    pre_enqueue: PointPlugins = None
    """Gates pods before they enter the queue."""
    queue_sort: PointPlugins = None
    """Orders the queue; exactly one plugin."""
    pre_filter: PointPlugins = None
    """Runs once per attempt, before Filter."""
    filter: PointPlugins = None
    """Rejects nodes that cannot run the pod."""
    post_filter: PointPlugins = None
    """Runs if no node is feasible, for example to preempt."""
    pre_score: PointPlugins = None
    """Runs once per attempt, before Score."""
    score: PointPlugins = None
    """Scores the feasible nodes, including NormalizeScore."""
    reserve: PointPlugins = None
    """Reserve and Unreserve: run when the pod is assumed, and when the assumption is undone."""
    permit: PointPlugins = None
    """Allows, rejects or delays the binding."""
    pre_bind: PointPlugins = None
    """Runs before the bind, and may wait."""
    bind: PointPlugins = None
    """Binds the pod."""
    post_bind: PointPlugins = None
    """Runs after the bind."""

    def by_point(self) -> dict[str, tuple[str, ...]]:
        """Returns point -> plugin names, with the framework's names of points, such as PreFilter."""
        named = ((setting.encode_name, getattr(self, setting.name)) for setting in fields_of(type(self)))
        return {point[0].upper() + point[1:]: names for point, names in named if names is not None}


class ProfileConfig(Section, frozen=True):
    """The plugins of a domain."""

    base: Literal["forecast", "gpu", "job", "default"] | None = None
    """The profile to start from: a built-in domain's, or `default`. Default: the domain's own if it is built in, otherwise default."""
    queue_sort: str | None = None
    """The QueueSort plugin, instead of the base's: QOSSort, PrioritySort or a custom one."""
    plugins: Plugins = Plugins()
    """Changes to the base."""
    points: Points = Points()
    """The plugins at each extension point; needed only if not all plugins that implement the point run there."""


_NUMBER_TOO: Final = Meta(extra_json_schema={SHORT_FORM: {"type": "integer", "minimum": 1}})


def _bounds(value: object) -> object:
    """Returns `{min, max}` for a plain number, which is the maximum."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": max(1, min(value, 2)), "max": value}
    if not isinstance(value, Mapping):
        raise ValueError("must be a number or have keys; write for instance 64 or {min: 2, max: 64}")  # noqa: TRY004 -- reported at the field
    return value


class _Bounds(Section, frozen=True):
    def __post_init__(self) -> None:
        low, high = (getattr(self, name) for name in ("min", "max"))
        if low > high:
            raise ValueError(f"min is {low}, above max, which is {high}; lower min or raise max")


class CycleBounds(_Bounds, frozen=True):
    """Range of the number of concurrent scheduling cycles."""

    min: Annotated[int, Meta(ge=1, le=256)] = 2
    """Never fewer."""
    max: Annotated[int, Meta(ge=1, le=256)] = 64
    """Never more."""


class BindBounds(_Bounds, frozen=True):
    """Range of the number of concurrent binds."""

    min: Annotated[int, Meta(ge=1, le=1024)] = 2
    """Never fewer, also after 429s."""
    max: Annotated[int, Meta(ge=1, le=1024)] = 512
    """Never more."""


class Concurrency(Section, frozen=True):
    """Concurrency limits of a domain."""

    cycles: Annotated[CycleBounds, Before(_bounds), _NUMBER_TOO] = CycleBounds()
    """Number of scheduling cycles that concurrently wait for external responses. It follows the queue and the latency of the
    responses. A number N means max: N."""
    bind_workers: Annotated[BindBounds, Before(_bounds), _NUMBER_TOO] = BindBounds()
    """Number of concurrent binds. It follows the queue, the latency of the API server and its 429s. A number N means max: N.
    PreBind has a separate limit."""
    max_in_flight_binds: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """An older name of bindWorkers.max; the smaller of the two applies."""

    @property
    def binds(self) -> BindBounds:
        """The range of the number of binding requests in flight."""
        most = min(self.bind_workers.max, self.max_in_flight_binds or self.bind_workers.max)
        return BindBounds(min(self.bind_workers.min, most), most)


class Queue(Section, frozen=True):
    """Waiting times of pods after failed attempts."""

    initial_backoff_s: Seconds = 1.0
    """Backoff after the first failed attempt; it doubles with each further one."""
    max_backoff_s: Seconds = 10.0
    """Maximum backoff."""
    unschedulable_flush_s: Seconds = 300.0
    """An unschedulable pod is requeued after this time even without an event."""

    def __post_init__(self) -> None:
        if self.initial_backoff_s > self.max_backoff_s:
            raise ValueError("initialBackoff is longer than maxBackoff")


class PodRuleConfig(Section, frozen=True):
    """Selects pods that meet any of these conditions."""

    requests: Annotated[tuple[ResourceName, ...], Meta(max_length=64)] = ()
    """The pod requests one of these resources."""
    annotations: Annotated[tuple[LabelKey, ...], Meta(max_length=64)] = ()
    """The pod has one of these annotations, with any value."""
    selector: Selector | None = None
    """The pod's labels match."""

    def __post_init__(self) -> None:
        if not self.requests and not self.annotations and self.selector is None:
            raise ValueError("selects no pod; set requests, annotations or a selector, or remove it to select all pods")

    def compile(self) -> PodRule:
        """Returns the rule as a value of the model."""
        return PodRule(self.requests, self.annotations, self.selector.compile() if self.selector else None)


class TolerationConfig(Section, frozen=True):
    """A toleration, as in a pod, and the pods to which it is added."""

    key: Annotated[str, Meta(max_length=317)] = ""
    """Key of the taint. Empty, with Exists: all taints."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Equal: the taint has this value. Exists: the taint has any value."""
    value: Annotated[str, Meta(max_length=63)] = ""
    """Value of the taint, with Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint. Empty: all effects."""
    pods: PodRuleConfig | None = None
    """The pods of the domain to which it is added. Default: all."""

    def __post_init__(self) -> None:
        if not self.key and self.operator != "Exists":
            raise ValueError("an empty key needs the operator Exists")
        if self.operator == "Exists" and self.value:
            raise ValueError("the operator Exists takes no value")

    def compile(self) -> Toleration:
        """Returns the rule as a value of the model."""
        fields = self.key, self.operator, self.value, self.effect
        return Toleration(*fields) if self.pods is None else LimitedToleration(*fields, self.pods.compile())


class Policy(Section, frozen=True):
    """Settings that the domain adds to its pods during scheduling; the pod objects are not changed."""

    tolerations: Annotated[tuple[TolerationConfig, ...], Meta(max_length=64)] | None = None
    """Tolerations added to pods of the domain. Default: those of the built-in domain."""

    def compile(self) -> tuple[Toleration, ...]:
        """Returns the tolerations as values of the model."""
        return tuple(t.compile() for t in self.tolerations or ())


class DomainConfig(Section, frozen=True):
    """One scheduler: its names, its nodes, its plugins."""

    name: Annotated[str, Meta(pattern=_NAME)]
    """Name of the domain in metrics, in the Lease's name, and in the node label `multisched.io/domain`."""
    scheduler_names: Annotated[tuple[SchedulerName, ...], Meta(max_length=16)] = ()
    """The spec.schedulerName of its pods. Default: NAME-scheduler."""
    nodes: Nodes = Nodes()
    """Its home nodes."""
    loans: Annotated[tuple[Loan, ...], Meta(max_length=DOMAINS_MAX)] = ()
    """Nodes of other domains that it may use, too."""
    profile: ProfileConfig = ProfileConfig()
    """Its plugins."""
    concurrency: Concurrency = Concurrency()
    """Concurrency limits."""
    queue: Queue = Queue()
    """Waiting times of pods after failed attempts."""
    policy: Policy = Policy()
    """Settings that it adds to its pods."""
    extenders: Annotated[tuple[ExtenderConfig, ...], Meta(max_length=EXTENDERS_MAX)] = ()
    """HTTP extenders, called in this order, ignorable ones last."""

    def __post_init__(self) -> None:
        refuse_conflicts(self.extenders)


class LeaseConfig(Section, frozen=True):
    """Leader election, with one Lease for all domains or one per domain."""

    enabled: bool = True
    """Set to false only if no second process can run."""
    namespace: Annotated[str, Meta(max_length=63)] = ""
    """Namespace of the Leases. Empty: the program's namespace; outside a cluster, kube-system."""
    name_prefix: Annotated[str, Meta(pattern=_NAME)] = "multisched"
    """A Lease is named PREFIX-DOMAIN, after the first of the domains that share it."""
    per_domain: bool = False
    """
    True: each domain has its own Lease, and different replicas can hold them. Domains between which there are loans without
    limits, or of idle capacity, share one. Affinity across nodes then applies only within the domains of one replica; quotas need
    deploy/crds/slicesets.yaml.
    """
    spread: bool = False
    """With `perDomain`: a process that holds a Lease acquires another free one only after `duration`, so that other processes can."""
    duration_s: Seconds = 15.0
    """Another process may acquire the Lease this long after its last renewal."""
    renew_deadline_s: Seconds = 10.0
    """The holder stops binding this long after its last successful renewal."""
    retry_period_s: Seconds = 2.0
    """Time between two attempts to acquire or renew the Lease."""

    def __post_init__(self) -> None:
        if self.duration_s != int(self.duration_s):
            raise ValueError("duration must be whole seconds, the resolution of a Lease")
        if not self.duration_s > self.renew_deadline_s:
            raise ValueError("duration must be longer than renewDeadline")
        if not self.renew_deadline_s > 1.2 * self.retry_period_s:
            raise ValueError("renewDeadline must be longer than 1.2 times retryPeriod (its jitter)")


class Tls(Section, frozen=True):
    """The server's certificate. Files are reloaded when they change."""

    cert_file: str | None = None
    """Certificate with its chain, PEM."""
    key_file: str | None = None
    """Private key without a password, PEM."""
    self_signed: bool = False
    """Create a self-signed certificate at each start, as kube-scheduler does, for probes and for scrapers that do not verify it."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("certFile and keyFile must be set together; set both or neither")
        if self.self_signed and self.cert_file is not None:
            raise ValueError("selfSigned and certFile are mutually exclusive; remove one")

    @property
    def is_on(self) -> bool:
        return self.self_signed or self.cert_file is not None

    def notes(self) -> Iterator[str]:
        """Yields notes about files that do not exist on this machine; the program may run on another one."""
        for name, file in (("certFile", self.cert_file), ("keyFile", self.key_file)):
            if file is not None and not Path(file).is_file():
                yield f"server.tls.{name}: the file {file} does not exist on this machine; the program does not start without it"


class ServerConfig(Section, frozen=True):
    """The HTTP server: /livez, /readyz, /metrics, /api/v1."""

    enabled: bool = True
    """False: the program has no port."""
    bind_address: Annotated[str, Meta(max_length=64), After(_ip_address)] = "127.0.0.1"
    """IP address to listen on. Other than loopback, it requires tls."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 10260
    """0: any free port."""
    advertised_url: Annotated[str, Meta(max_length=256), After(_base_url)] | None = None
    """URL of this process, published in its Lease for commands. Default: the pod's IP (POD_IP), or the bound address."""
    probe_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """A second port, with plain HTTP, only for /livez and /readyz; it responds even if the first one is overloaded. Default: none."""
    tls: Tls = Tls()
    """Without a certificate, the server uses HTTP, on loopback only."""
    authentication: bool | None = None
    """Authenticate and authorize access to /metrics and /api with TokenReview and SubjectAccessReview. Default: true with tls."""

    quota_webhook: bool = False
    """Serve AdmissionReviews of quotas at /validate/quotas, without authentication, since kube-apiserver sends no token."""

    @property
    def is_authenticating(self) -> bool:
        return self.tls.is_on if self.authentication is None else self.authentication

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.bind_address).is_loopback

    def __post_init__(self) -> None:
        if self.probe_port and self.probe_port == self.port:
            raise ValueError(f"probePort must differ from port ({self.port})")
        if not self.is_loopback and not self.tls.is_on:
            raise ValueError(
                f"without tls, bindAddress must be loopback, got {self.bind_address}; set tls.selfSigned or tls.certFile"
            )
        if not self.is_loopback and not self.is_authenticating:
            raise ValueError("authentication can be disabled on loopback only")


class ClientConfig(Section, frozen=True):
    """Access to the API server."""

    writes_per_second: Annotated[int, Meta(ge=1, le=100_000)] = 5000
    """Limit of all writes; usually the API server's 429 limits them earlier."""
    bind_timeout_s: Seconds = 5.0
    """Timeout of one binding request, in the client and in the API server."""
    audit_period_s: Seconds = 60.0
    """Period at which the cache is compared with a list from the API server."""


VERIFY_MIN_S: Final = 10.0
"""Minimum, since each run lists all pods."""


class VerifyConfig(Section, frozen=True):
    """Periodic runs of `multisched verify` while the program runs, in a separate process with its own lists."""

    every_s: Seconds | None = None
    """Period of the runs, at least 10s. Default: none."""

    def __post_init__(self) -> None:
        if self.every_s is not None and self.every_s < VERIFY_MIN_S:
            raise ValueError(
                f"every must be at least 10s, since each run lists all pods; got {format_duration(self.every_s)}"
            )


def _current_format(value: object) -> object:
    """Accepts console, the name of text in version 0.1.0."""
    return "text" if value == "console" else value


class LoggingConfig(Section, frozen=True):
    """Log lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    format: Annotated[Literal["auto", "json", "text"], Before(_current_format)] = "auto"
    """One JSON object per line, or readable text. auto: text on a terminal, otherwise JSON."""


class MetricsConfig(Section, frozen=True):
    """Settings of /metrics."""

    kube_scheduler_names: bool = False
    """Export metrics also under kube-scheduler's names (scheduler_...), for existing dashboards and alerts."""


class Configuration(Section, frozen=True):
    """The configuration file of one deployment."""

    api_version: Literal["multisched.io/v1"]
    """Version of the file format."""
    kind: Literal["MultischedConfiguration"]
    """Kind of the file."""
    domains: Annotated[tuple[DomainConfig, ...], Meta(min_length=1, max_length=DOMAINS_MAX)] = field(
        default_factory=lambda: tuple(DomainConfig(name=name) for name in BUILT_IN_DOMAINS)
    )
    """The schedulers of this deployment. Default: forecast, gpu and job with their defaults."""
    lease: LeaseConfig = LeaseConfig()
    """Leader election."""
    server: ServerConfig = ServerConfig()
    """Health, metrics and API."""
    client: ClientConfig = ClientConfig()
    """Access to the API server."""
    logging: LoggingConfig = LoggingConfig()
    """Logging."""
    metrics: MetricsConfig = MetricsConfig()
    """Prometheus metrics."""
    verify: VerifyConfig = VerifyConfig()
    """Periodic checks for pods that violate a required rule, whichever scheduler placed them."""

    def __post_init__(self) -> None:
        margin_s = self.lease.duration_s - self.lease.renew_deadline_s
        if self.lease.enabled and self.client.bind_timeout_s > margin_s:
            raise ValueError(
                "client.bindTimeout must not be longer than lease.duration - lease.renewDeadline:"
                " a late bind could conflict with one of the next leader"
            )

    @property
    def served(self) -> frozenset[str]:
        """The schedulerNames of all domains."""
        return frozenset(name for domain in self.domains for name in domain.scheduler_names)

    def domain(self, name: str) -> DomainConfig:
        """Returns the domain of this name. Raises KeyError if it is not configured."""
        for domain in self.domains:
            if domain.name == name:
                return domain
        raise KeyError(name)
