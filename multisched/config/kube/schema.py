"""kube-scheduler's configuration as values: `kubescheduler.config.k8s.io/v1`, `kind: KubeSchedulerConfiguration`.

Names, types, defaults and validation are upstream's; the error messages are not. Read by `convert`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from multisched.config.sections import After, Before, Section, fields_of
from multisched.model.go_duration import parse_go_duration
from multisched.model.resources import is_extended_resource
from multisched.model.selectors import is_qualified_name

KUBE_API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
ALL: Final = "*"
POINTS: Final = (
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
)
"""The points at which a plugin can be enabled, in the order in which upstream lists a profile's plugins."""

REMOVED_PLUGINS: Final = frozenset({"AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"})


def _duration(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError('a duration must be a text, for example "5s"')  # noqa: TRY004 -- reported at the field
    return parse_go_duration(text)


GoDuration = Annotated[float, Before(_duration)]
Percentage = Annotated[int, Meta(ge=0, le=100)]


def _present_plugin(name: str) -> str:
    if name in REMOVED_PLUGINS:
        raise ValueError(f"{name} was removed in {KUBE_API_VERSION}; use NodeVolumeLimits")
    return name


class KubePlugin(Section, frozen=True):
    """A plugin enabled or disabled at a point."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    weight: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """0: not set, which counts as 1."""


class KubeEnabledPlugin(KubePlugin, frozen=True):
    """A plugin enabled at a point; plugins that v1 removed are rejected."""

    name: Annotated[str, Meta(min_length=1, max_length=253), After(_present_plugin)]


class KubePluginSet(Section, frozen=True):
    """The plugins enabled and disabled at one point."""

    enabled: tuple[KubeEnabledPlugin, ...] = ()
    disabled: tuple[KubePlugin, ...] = ()


class KubePlugins(Section, frozen=True):
    """The plugin sets of all points."""

    pre_enqueue: KubePluginSet = KubePluginSet()
    queue_sort: KubePluginSet = KubePluginSet()
    pre_filter: KubePluginSet = KubePluginSet()
    filter: KubePluginSet = KubePluginSet()
    post_filter: KubePluginSet = KubePluginSet()
    pre_score: KubePluginSet = KubePluginSet()
    score: KubePluginSet = KubePluginSet()
    reserve: KubePluginSet = KubePluginSet()
    permit: KubePluginSet = KubePluginSet()
    pre_bind: KubePluginSet = KubePluginSet()
    bind: KubePluginSet = KubePluginSet()
    post_bind: KubePluginSet = KubePluginSet()
    multi_point: KubePluginSet = KubePluginSet()
    placement_generate: KubePluginSet = KubePluginSet()
    placement_score: KubePluginSet = KubePluginSet()

    def at(self, point: str) -> KubePluginSet:
        """Returns the set of a point, by its name in the file."""
        found = getattr(self, next(one.name for one in fields_of(type(self)) if one.encode_name == point))
        assert isinstance(found, KubePluginSet)
        return found


class KubePluginConfig(Section, frozen=True):
    """One plugin's arguments."""

    name: Annotated[str, After(_present_plugin)]
    args: Mapping[str, Any] = {}


class KubeProfile(Section, frozen=True):
    """A profile."""

    scheduler_name: str = ""
    percentage_of_nodes_to_score: Percentage | None = None
    plugins: KubePlugins = KubePlugins()
    plugin_config: tuple[KubePluginConfig, ...] = ()


class KubeLeaderElection(Section, frozen=True):
    """Leader election."""

    leader_elect: bool = True
    lease_duration: GoDuration = 0.0
    renew_deadline: GoDuration = 0.0
    retry_period: GoDuration = 0.0
    resource_lock: str = ""
    resource_name: str = ""
    resource_namespace: str = ""

    def __post_init__(self) -> None:
        if not self.leader_elect:
            return
        durations = {
            "leaseDuration": self.lease_duration,
            "renewDeadline": self.renew_deadline,
            "retryPeriod": self.retry_period,
        }
        for name, seconds in durations.items():
            if seconds < 0:
                raise ValueError(f"{name} must be longer than 0s")
        if (self.lease_duration or 15.0) <= (self.renew_deadline or 10.0):
            raise ValueError("leaseDuration must be longer than renewDeadline")
        if (self.renew_deadline or 10.0) <= 1.2 * (self.retry_period or 2.0):
            raise ValueError("renewDeadline must be longer than 1.2 times retryPeriod (its jitter)")
        if self.resource_lock not in ("", "leases"):
            raise ValueError(f"resourceLock {self.resource_lock!r} is not supported; write leases")


class KubeClientConnection(Section, frozen=True):
    """Connection to the API server."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 0.0
    burst: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


def _managed(name: str) -> str:
    if not is_qualified_name(name) or not is_extended_resource(name):
        raise ValueError(f"{name!r} is not an extended resource name")
    return name


class KubeManagedResource(Section, frozen=True):
    """An extended resource that an extender manages."""

    name: Annotated[str, After(_managed)]
    ignored_by_scheduler: bool = False


class KubeExtenderTls(Section, frozen=True):
    """TLS of an extender."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""


class KubeExtender(Section, frozen=True):
    """An HTTP extender."""

    url_prefix: str
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = field(default=False, name="enableHTTPS")
    tls_config: KubeExtenderTls | None = None
    http_timeout: GoDuration = 0.0
    node_cache_capable: bool = False
    managed_resources: tuple[KubeManagedResource, ...] = ()
    ignorable: bool = False

    def __post_init__(self) -> None:
        if self.prioritize_verb and self.weight <= 0:
            raise ValueError("prioritizeVerb needs a positive weight; set weight")


def _still_read(version: Any) -> Any:
    if isinstance(version, str) and version.startswith(f"{KUBE_API_VERSION}beta"):
        old = version.rpartition("/")[2]
        raise ValueError(
            f"kube-scheduler 1.36 no longer reads {old}; its fields are nearly those of v1: write {KUBE_API_VERSION}"
        )
    return version


class KubeConfiguration(Section, frozen=True):
    """The whole file."""

    api_version: Annotated[Literal["kubescheduler.config.k8s.io/v1"], Before(_still_read)]
    kind: Literal["KubeSchedulerConfiguration"]
    parallelism: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    leader_election: KubeLeaderElection = KubeLeaderElection()
    client_connection: KubeClientConnection = KubeClientConnection()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    percentage_of_nodes_to_score: Percentage | None = None
    pod_initial_backoff_seconds: Annotated[int, Meta(ge=1, le=2**53)] = 1
    pod_max_backoff_seconds: Annotated[int, Meta(ge=1, le=2**53)] = 10
    profiles: tuple[KubeProfile, ...] = ()
    extenders: tuple[KubeExtender, ...] = ()
    delay_cache_until_active: bool = False

    def __post_init__(self) -> None:
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds:
            raise ValueError("podMaxBackoffSeconds must not be shorter than podInitialBackoffSeconds")
        binders = sum(bool(extender.bind_verb) for extender in self.extenders)
        if binders > 1:
            raise ValueError(f"{binders} extenders have a bindVerb; only one can bind")
        names = [resource.name for extender in self.extenders for resource in extender.managed_resources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is managed by two extenders; remove it from one")
