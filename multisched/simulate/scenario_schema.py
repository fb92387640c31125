"""A scenario file as frozen values: `apiVersion: multisched.io/v1alpha1`, `kind: Scenario`.

Defines names, types, bounds and defaults of all fields, each with an explanation. `scenario_file` checks rules that depend on
other files or other fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from multisched.config.schema import ProfileConfig
from multisched.config.sections import After, Before, Section
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY
from multisched.model.quantity import QuantityError, parse_milli
from multisched.model.resources import HUGEPAGES_PREFIX
from multisched.model.selectors import is_label_value, is_qualified_name
from multisched.simulate.scenario_time import ScenarioTime, parse_time

API_VERSION: Final = "multisched.io/v1alpha1"
KIND: Final = "Scenario"
SERVICES_MAX, REPLICAS_MAX, NODES_MAX = 5_000, 10_000, 5_000
EVENTS_MAX, POLICIES_MAX, SEEDS_MAX = 10_000, 16, 1_000
SEED_MAX: Final = 2**32 - 1
TROUGH: Final = "trough"

SERVICE_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
Name = Annotated[str, Meta(pattern=SERVICE_NAME)]
FRACTIONAL: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""Resources that can be requested in fractions."""
_NAME_RULE: Final = "at most 63 letters, digits, dashes, underscores and dots, with a letter or digit first and last"


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('not a quantity; write a number or for instance "500m" or "16Gi"')  # noqa: TRY004 - reported at the field
    try:
        milli = parse_milli(value)
    except QuantityError as error:
        raise ValueError(str(error)) from error
    if milli <= 0:
        raise ValueError("must be above zero")
    return str(value)


def _label_key(text: str) -> str:
    if not is_qualified_name(text):
        raise ValueError(f"{text!r} is not a label key; write {_NAME_RULE}, after an optional DNS name and a slash")
    return text


def _label_value(text: str) -> str:
    if not is_label_value(text):
        raise ValueError(f"{text!r} is not a label value; write {_NAME_RULE}, or nothing")
    return text


def _resource(text: str) -> str:
    if not is_qualified_name(text):
        raise ValueError(f"{text!r} is not a resource name; write for instance cpu, memory or nvidia.com/gpu")
    return text


def requested_resource(text: str) -> str:
    """Returns the name of a resource that a container can request. Raises ValueError for another name."""
    is_known = text in FRACTIONAL or "/" in text or text.startswith(HUGEPAGES_PREFIX)
    if not (is_known and is_qualified_name(text)):
        known = f"{', '.join(FRACTIONAL)}, {HUGEPAGES_PREFIX}SIZE or a name such as nvidia.com/gpu"
        raise ValueError(f"{text!r} is not a resource that pods can request; write {known}")
    return text


def refuse_fraction(resource: str, quantity: str) -> None:
    """Raises ValueError if a request is a fraction of a resource that is requested in whole units only."""
    if resource not in FRACTIONAL and parse_milli(quantity) % 1000:
        raise ValueError(f"{quantity!r} is not a whole number; only {_listed(FRACTIONAL)} have fractions")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _time(value: object) -> object:
    return value if isinstance(value, ScenarioTime) else parse_time(value)


def _time_or_trough(value: object) -> object:
    return None if value == TROUGH else _time(value)


def _seeds(value: object) -> object:
    """Converts a number of seeds to the seeds 0, 1, …"""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("write a number of seeds, or a list of seeds")  # noqa: TRY004 - reported at the field
    if not 1 <= value <= SEEDS_MAX:
        raise ValueError(f"write a number of seeds from 1 to {SEEDS_MAX}, or a list of seeds")
    return tuple(range(value))


Quantity = Annotated[str, Before(_quantity)]
ResourceName = Annotated[str, After(_resource)]
RequestedResource = Annotated[str, After(requested_resource)]
LabelKey = Annotated[str, After(_label_key)]
LabelValue = Annotated[str, After(_label_value)]
Seed = Annotated[int, Meta(ge=0, le=SEED_MAX)]
At = Annotated[Any, Before(_time)]
"""`day 20`, `day 20 04:00` or ISO 8601; read as a `ScenarioTime`."""


class UsageFiles(Section, frozen=True):
    """Recorded usage."""

    files: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
    """CSV files, relative to the scenario: timestamp, service (or pod), dimension, value."""


class ServiceEntry(Section, frozen=True):
    """One service, all of whose replicas have the same requests."""

    name: Name
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
    requests: Mapping[RequestedResource, Quantity] = {}
    """Requests of each replica, as in a container."""

    def __post_init__(self) -> None:
        for name, quantity in self.requests.items():
            try:
                refuse_fraction(name, quantity)
            except ValueError as error:
                raise ValueError(f"requests.{name}: {error}") from error


class Services(Section, frozen=True):
    """The services, from a file, a list, or both."""

    file: str | None = None
    """CSV, relative to the scenario: service, replicas, and NAME_request (or memory_request_gib) per resource."""
    entries: Annotated[tuple[ServiceEntry, ...], Meta(max_length=SERVICES_MAX)] = field(default=(), name="list")

    def __post_init__(self) -> None:
        if self.file is None and not self.entries:
            raise ValueError("no services; name a file or write a list")


class NodeTemplate(Section, frozen=True):
    """`count` identical nodes, named NAME-0, NAME-1, …"""

    name: Name
    count: Annotated[int, Meta(ge=1, le=NODES_MAX)]
    allocatable: Mapping[ResourceName, Quantity]
    """The amounts that pods may request; `pods` is 110 by default."""
    capacity: Mapping[str, Quantity] = {}
    """The amounts that pods may use, per dimension of the usage. Default: the allocatable of the same name."""
    labels: Mapping[LabelKey, LabelValue] = {}


class Known(Section, frozen=True):
    """The part of the usage that policies may know when the run begins."""

    until: At
    """The last day, or moment, of the history."""


class Judged(Section, frozen=True):
    """The days for which figures are computed."""

    begin: At = field(name="from")
    end: At = field(name="to")
    """A day without a time is included to its end."""


class Create(Section, frozen=True):
    """When and in which order the services are created in the empty cluster."""

    at: Annotated[Any, Before(_time_or_trough)] = None
    """A moment, or `trough`: the step of the last known day with the least use of all replicas, relative to capacity.
    Default: trough."""
    order: Literal["random", "services", "listed"] = "random"
    """random: all replicas in an order drawn from the seed; services: service after service in a drawn order; listed: in the
    order of the file. Also the order of releases."""


class Event(Section, frozen=True):
    """An event: services are released (every replica is replaced, one by one) or scaled."""

    at: At
    release: Annotated[tuple[str, ...], Meta(max_length=SERVICES_MAX)] = ()
    """Names of services; "*" means all."""
    scale: Mapping[str, Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]] = {}
    """Service -> number of replicas from this moment on."""

    def __post_init__(self) -> None:
        if not self.release and not self.scale:
            raise ValueError("neither release nor scale is set; write release: [SERVICE] or scale: {SERVICE: REPLICAS}")


class PolicyEntry(Section, frozen=True):
    """One policy: the name of a built-in policy or of one that a domain adds, or a new name with a profile or a configuration.
    In the file, a name may replace the whole entry. Domains add sections (`policies.entry_type`)."""

    name: Name
    profile: ProfileConfig | None = None
    """A profile, as in a configuration file."""
    configuration: str | None = None
    """A configuration file, relative to the scenario."""
    domain: str | None = None
    """The domain of the configuration that places the services. Default: the first."""

    def __post_init__(self) -> None:
        if self.profile is not None and self.configuration is not None:
            raise ValueError("a profile and a configuration exclude each other; remove one")
        if self.domain is not None and self.configuration is None:
            raise ValueError("a domain needs a configuration; name its file")


class ScenarioHeader(Section, frozen=True, kw_only=True):
    """The fields of every scenario file, for any workload."""

    api_version: Literal["multisched.io/v1alpha1"]
    kind: Literal["Scenario"]
    name: Annotated[str, Meta(max_length=80)] = ""
    """Title of the report. Default: the file's name."""
    policies: Annotated[tuple[Any, ...], Meta(min_length=1, max_length=POLICIES_MAX)]
    """Plain data of policy entries, which `policies` validates. Default: those of the workload."""
    seeds: Annotated[tuple[Seed, ...], Before(_seeds), Meta(min_length=1, max_length=SEEDS_MAX)] = (0,)
    """A number of seeds (from 0) or a list. A seed determines the order of creation and all other random choices."""


class ScenarioFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario of recorded services."""

    usage: UsageFiles
    services: Services
    nodes: Annotated[tuple[NodeTemplate, ...], Meta(min_length=1, max_length=100)]
    known: Known
    judged: Judged
    create: Create = Create()
    events: Annotated[tuple[Event, ...], Meta(max_length=EVENTS_MAX)] = ()
