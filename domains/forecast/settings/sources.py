"""Settings of history: dimensions, sources, and how often they are read. Every error names the field and the fix.

```yaml
history:
  stepSeconds: 300
  windowDays: 28
  refreshSeconds: 3600
  sources:
    - type: prometheus
      url: http://prometheus.monitoring:9090
    - type: metrics-api
    - type: csv
      files: [/etc/multisched/history/day.csv]
  dimensions:
    - {name: cpu, ready: cadvisor-cpu, capacity: {allocatable: cpu}}
    - {name: log, query: "sum by (namespace, pod) (rate(log_bytes_total[$window]))", unit: bytes/s, capacity: 40M, weight: 2}
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from domains.forecast.curves.capacity import Capacity, CapacityError, default_capacity, read_capacity
from domains.forecast.service_names import Labels
from domains.forecast.settings.by_dimension import WEIGHT_MAX
from domains.forecast.settings.queries import READY, WINDOW, Per, promql_duration, unbalanced
from multisched.forecasting.time_units import DAY_S
from multisched.framework.measures import (
    ANSWER_BYTES_MAX,
    CONCURRENCY,
    POINTS_MAX,
    TIMEOUT_S,
    TRIES,
    MeterSettings,
    shown_query,
)
from multisched.framework.plugin_args import Fields
from multisched.framework.ports import ExtenderTrust
from multisched.model.loopback_name import is_loopback_name
from multisched.model.objects import CPU, MEMORY

DIMENSIONS_MAX: Final = 32
SOURCES_MAX: Final = 8
FILES_MAX: Final = 10_000
STEP_S, WINDOW_DAYS, REFRESH_S, LOAD_STEP_S = 300, 28.0, 3_600, 60
"""Defaults."""
STEPS_MAX: Final = 40_000
"""Limit of steps of the window: 27 days with steps of a minute."""

HISTORY: Final = ("stepSeconds", "windowDays", "refreshSeconds", "sources", "dimensions")
_PROMETHEUS: Final = (
    "type",
    "url",
    "tokenFile",
    "headers",
    "parameters",
    "timeoutSeconds",
    "answerBytesMax",
    "pointsMax",
    "concurrency",
    "tries",
    "tls",
    "labels",
    "owners",
)
_DIMENSION: Final = ("name", "ready", "query", "per", "unit", "capacity", "aggregation", "resolutionSeconds", "weight")


class Aggregation(Enum):
    """How the sample of a step is computed; the values are those of the configuration."""

    MEAN = "mean"
    """The query evaluated over the whole step."""
    MAX = "max"
    """The maximum of the query evaluated over parts of the step."""


class QueryCapacity(msgspec.Struct, frozen=True):
    """A capacity measured per node by a query, in the dimension's plain unit."""

    query: str


class Dimension(msgspec.Struct, frozen=True):
    """A resource of the forecast, such as cpu or log."""

    name: str
    query: str = ""
    """Empty if no Prometheus source measures it."""
    per: Per = Per.POD
    unit: str = ""
    capacity: Capacity | QueryCapacity = msgspec.field(default_factory=lambda: default_capacity(""))
    aggregation: Aggregation = Aggregation.MEAN
    resolution_s: int = 0
    """Length of the parts of a step for MAX; 0: a fifth of the step, at least a minute."""
    weight: float = 1.0

    def promql(self, step_s: float) -> str:
        """Returns the query for one sample per step, to be evaluated at the step's end."""
        if self.aggregation is Aggregation.MEAN:
            return self.query.replace(WINDOW, promql_duration(step_s))
        resolution_s = min(self.resolution_s or max(step_s / 5, 60), step_s)
        # rate() needs two scrapes, so its range is two parts.
        inner = self.query.replace(WINDOW, promql_duration(2 * resolution_s))
        return f"max_over_time(({inner})[{promql_duration(step_s)}:{promql_duration(resolution_s)}])"


class PrometheusSettings(msgspec.Struct, frozen=True):
    """A Prometheus-compatible server."""

    meter: MeterSettings
    labels: Labels = Labels()
    asks_owners: bool = True
    """Whether to query kube-state-metrics' series for the owners of pods."""


class LoadSettings(msgspec.Struct, frozen=True):
    """The metrics API; `step_s`: interval between polls."""

    step_s: int = LOAD_STEP_S


class CsvSettings(msgspec.Struct, frozen=True):
    """CSV files, read again at each refit."""

    files: tuple[str, ...]


SourceSettings = PrometheusSettings | LoadSettings | CsvSettings


class HistorySettings(msgspec.Struct, frozen=True):
    """All settings of history."""

    sources: tuple[SourceSettings, ...]
    dimensions: tuple[Dimension, ...]
    step_s: int = STEP_S
    window_days: float = WINDOW_DAYS
    refresh_s: int = REFRESH_S

    @property
    def steps(self) -> int:
        """Returns the number of steps of the window."""
        return max(1, round(self.window_days * DAY_S / self.step_s))


def history_of(settings: Fields) -> HistorySettings:
    """Parses `settings`, which has the fields of HISTORY; records problems in it."""
    dimensions = tuple(_dimension(entry) for entry in settings.entries("dimensions", _DIMENSION, DIMENSIONS_MAX))
    sources = tuple(_source(entry) for entry in settings.variants("sources", "type", _SOURCES, SOURCES_MAX))
    found = HistorySettings(
        tuple(source for source in sources if source is not None),
        dimensions,
        settings.integer("stepSeconds", STEP_S, 1, 3_600),
        settings.number("windowDays", WINDOW_DAYS, 1 / 24, 3_660),
        settings.integer("refreshSeconds", REFRESH_S, 10, 7 * DAY_S),
    )
    if found.steps > STEPS_MAX:
        settings.refuse(
            "windowDays", f"has {found.steps} steps of {found.step_s} s, more than {STEPS_MAX}; set longer steps"
        )
    _check_together(settings, found)
    return found


def _check_together(settings: Fields, found: HistorySettings) -> None:
    names = [dimension.name for dimension in found.dimensions]
    for number, name in enumerate(names):
        if name in names[:number]:
            settings.refuse(f"dimensions[{number}].name", f"{name} is a duplicate; remove one")
    if not settings.value("sources"):  # invalid sources were reported already
        settings.refuse(
            "sources", "is empty; write at least one, such as {type: prometheus, url: http://prometheus:9090}"
        )
    if not found.dimensions:
        settings.refuse("dimensions", "is empty; write at least one, such as {name: cpu, ready: cadvisor-cpu}")
    asks = any(isinstance(source, PrometheusSettings) for source in found.sources)
    if not asks and any(isinstance(dimension.capacity, QueryCapacity) for dimension in found.dimensions):
        settings.refuse("sources", "has no prometheus, which the capacity query of a dimension needs; add one")
    if not settings.is_refused():
        for number, dimension in enumerate(found.dimensions):
            if not _is_measured(dimension, found.sources):
                settings.refuse(
                    f"dimensions[{number}]", f"{dimension.name} is measured by no source; write ready or query"
                )


def _is_measured(dimension: Dimension, sources: Sequence[SourceSettings]) -> bool:
    """Reports whether a source measures the dimension; otherwise its use would silently count as zero."""
    return any(
        (isinstance(source, PrometheusSettings) and bool(dimension.query))
        or (isinstance(source, LoadSettings) and dimension.name in (CPU, MEMORY))
        or isinstance(source, CsvSettings)
        for source in sources
    )


def _dimension(settings: Fields) -> Dimension:
    name = settings.text("name")
    if not name:
        settings.refuse("name", "is missing; name the dimension, such as log")
    ready = READY.get(settings.choice("ready", "", ("", *READY)))
    query = settings.text("query", ready.query if ready else "")
    if ready is not None and settings.has("query"):
        settings.refuse("query", "cannot be combined with ready; remove one of the two")
    elif settings.has("query"):
        _check_query(settings, "query", query)
    default_per = (ready.per if ready else Per.POD).value
    per = Per(settings.choice("per", default_per, [per.value for per in Per]))
    if ready is not None and per is not ready.per:
        settings.refuse("per", f"is {per.value}, and {settings.text('ready')} is per {ready.per.value}; remove it")
    return Dimension(
        name,
        query,
        per,
        settings.text("unit", ready.unit if ready else ""),
        _capacity(settings, name),
        Aggregation(settings.choice("aggregation", "mean", [one.value for one in Aggregation])),
        settings.integer("resolutionSeconds", 0, 0, 3_600),
        settings.number("weight", 1.0, 0.0, WEIGHT_MAX),
    )


def _check_query(settings: Fields, field: str, query: str) -> None:
    if not query.strip():
        settings.refuse(field, "is empty; write PromQL, or name a ready query")
    wrong = unbalanced(query)
    if wrong:
        settings.refuse(field, f"does not parse: {wrong} (query: {shown_query(query)})")


def _capacity(settings: Fields, name: str) -> Capacity | QueryCapacity:
    """Parses a capacity: `allocatable`, a number, or {allocatable|number|label|annotation|query: …}."""
    found = settings.value("capacity")
    fix = "write allocatable, a number, a quantity such as 40M, or one of {allocatable, number, label, annotation, query: …}"
    if found is None:
        return default_capacity(name)
    if found == "allocatable":
        found = {"allocatable": name}
    if isinstance(found, Mapping) and len(found) == 1:
        ((word, key),) = found.items()
        if word == "query":
            if isinstance(key, str) and key.strip():
                _check_query(settings, "capacity", key)
                return QueryCapacity(key)
            settings.refuse("capacity", f"has no query; {fix}")
            return default_capacity(name)
        if word == "number":
            found = key
    try:
        return read_capacity(found)
    except CapacityError as error:
        words = str(error)
        settings.refuse("capacity", words if ";" in words else f"{words}; {fix}")
        return default_capacity(name)


def _source(settings: Fields) -> SourceSettings | None:
    match settings.value("type"):
        case "prometheus":
            return _prometheus(settings)
        case "metrics-api":
            return LoadSettings(settings.integer("stepSeconds", LOAD_STEP_S, 10, 3_600))
        case "csv":
            files = tuple(file for _, file in settings.texts("files", FILES_MAX))
            if not files:
                settings.refuse("files", "is empty; name at least one CSV file")
            return CsvSettings(files)
        case _:
            return None


def _prometheus(settings: Fields) -> PrometheusSettings:
    url = settings.text("url")
    if not url.startswith(("http://", "https://")) or len(url) < len("http://x"):
        settings.refuse("url", f"is {url!r}; write the address before /api/v1, such as http://prometheus:9090")
    elif "@" in url:  # the URL, and so the password, appears in logs and messages
        settings.refuse("url", "names a user or a password; write a token to a file and name it under tokenFile")
    elif url.rstrip("/").endswith("/api/v1"):
        settings.refuse("url", f"is {url!r}; leave /api/v1 out")
    elif "?" in url or "#" in url:
        settings.refuse("url", f"is {url!r}; write the part after ? under parameters")
    token_file = settings.text("tokenFile")
    if token_file and url.startswith("http://") and not is_loopback_name(urlsplit(url).netloc):
        text = "would be sent unencrypted, so that others on the network could read the token; write https:// in url"
        settings.refuse("tokenFile", f"{text}, use a loopback address, or remove tokenFile")
    headers = settings.pairs("headers")
    for name in headers:
        if name.lower() == "authorization":
            settings.refuse("headers", "has Authorization; write the token to a file and name it under tokenFile")
    tls = settings.below("tls", ("caFile", "certFile", "keyFile", "serverName", "insecure"))
    labels = settings.below("labels", ("pod", "namespace", "node", "service"))
    meter = MeterSettings(
        url,
        token_file,
        headers,
        settings.pairs("parameters"),
        settings.number("timeoutSeconds", TIMEOUT_S, 0.1, 600),
        settings.integer("answerBytesMax", ANSWER_BYTES_MAX, 1_024, 1_024 * 1024 * 1024),
        settings.integer("pointsMax", POINTS_MAX, 1, POINTS_MAX),
        settings.integer("concurrency", CONCURRENCY, 1, 64),
        settings.integer("tries", TRIES, 1, 10),
        ExtenderTrust(
            is_insecure=tls.flag("insecure", default=False),
            server_name=tls.text("serverName"),
            ca_file=tls.text("caFile"),
            cert_file=tls.text("certFile"),
            key_file=tls.text("keyFile"),
        ),
    )
    own = Labels(
        labels.text("pod", "pod"), labels.text("namespace", "namespace"), labels.text("node"), labels.text("service")
    )
    return PrometheusSettings(meter, own, settings.flag("owners", default=True))


_SOURCES: Final[Mapping[str, Sequence[str]]] = {
    "prometheus": _PROMETHEUS,
    "metrics-api": ("type", "stepSeconds"),
    "csv": ("type", "files"),
}
"""Type of source -> its fields."""
