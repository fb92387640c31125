"""How panels are made: values of ours turned into Grafana's, one way for all dashboards.

Every query asks the data source that the reader chose, for the `job` that was chosen. A panel says what is right, in one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

JOB: Final = 'job=~"$job"'
DOMAIN: Final = 'job=~"$job", domain=~"$domain"'
TAG: Final = "multisched"
STAT_WIDTH, GRAPH_WIDTH = 4, 8
STAT_HEIGHT, GRAPH_HEIGHT = 4, 8
_SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="$datasource")


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and how its series are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Lines over time."""

    title: str
    queries: Sequence[Query]
    what: str
    """What it shows, and what is right."""
    unit: str = "short"
    is_stacked: bool = False
    width: int = GRAPH_WIDTH


@dataclass(frozen=True, slots=True)
class Figure:
    """One large number, or one for each series."""

    title: str
    query: Query
    what: str
    unit: str = "short"
    steps: Sequence[tuple[float | None, str]] = ((None, "green"),)
    """(from which value on, colour), ascending; the first has no value."""
    width: int = STAT_WIDTH


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and what stands below it."""

    title: str
    panels: Sequence[Graph | Figure]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; its file is named by `name`."""

    name: str
    title: str
    what: str
    rows: Sequence[Row]
    has_domains: bool = True


def leading(expression: str) -> str:
    """Without the series of a standby, which knows the same pods."""
    return f"({expression}) and on (job, instance, domain) (multisched_lease_held == 1)"


def rate(metric: str, labels: str = DOMAIN, by: str = "") -> str:
    total = f"rate({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def quantile(share: float, metric: str, labels: str = DOMAIN, by: str = "") -> str:
    """Of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, f'le, {by}' if by else 'le')})"


WAITING: Final = "sum by (domain, queue) (" + leading(f"multisched_pending_pods{{{DOMAIN}}}") + ")"
REFUSED: Final = "sum by (domain, plugin) (" + leading(f"multisched_unschedulable_pods{{{DOMAIN}}}") + ")"
SLI: Final = "multisched_pod_scheduling_sli_duration_seconds"
BAD_ABOVE_ZERO: Final = ((None, "green"), (1e-9, "red"))


def medians(metric: str, legend: str, by: str = "domain", labels: str = DOMAIN) -> list[Query]:
    """Median and 99th percentile of a histogram."""
    return [Query(quantile(share, metric, labels, by), f"p{share * 100:.0f} {legend}") for share in (0.5, 0.99)]


def built(board: Board) -> models.Dashboard:
    """As Grafana has it."""
    made = (
        builders.Dashboard(board.title)
        .uid(f"multisched-{board.name}")
        .description(board.what)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(multisched_build_info, job)"))
        .link(
            builders.DashboardLink("multisched")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
        )
    )
    if board.has_domains:
        made.with_variable(_variable("domain", "Domain", 'label_values(multisched_lease_held{job=~"$job"}, domain)'))
    for row in board.rows:
        made.with_row(builders.Row(row.title))
        for panel in row.panels:
            made.with_panel(_graph(panel) if isinstance(panel, Graph) else _figure(panel))
    dashboard = made.build()
    for number, one in enumerate(dashboard.panels or (), 1):
        one.id_val = number
    return dashboard


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    """All of them stands for those that the query finds: `.+` would take in other components, which have `process_…`, too."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(_SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _target(number: int, query: Query) -> prometheus.Dataquery:
    name = chr(ord("A") + number)
    return prometheus.Dataquery().ref_id(name).expr(query.expression).legend_format(query.legend).range()


def _graph(graph: Graph) -> timeseries.Panel:
    calcs = common_builders.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "max"])
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .description(graph.what)
        .datasource(_SOURCE)
        .unit(graph.unit)
        .min(0)
        .height(GRAPH_HEIGHT)
        .span(graph.width)
        .fill_opacity(60 if graph.is_stacked else 8)
        .line_width(1)
        .legend(calcs.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.BOTTOM))
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
    )
    if graph.is_stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for number, query in enumerate(graph.queries):
        panel.with_target(_target(number, query))
    return panel


def _figure(figure: Figure) -> stat.Panel:
    steps = [models.Threshold(value=value, color=colour) for value, colour in figure.steps]
    return (
        stat.Panel()
        .title(figure.title)
        .description(figure.what)
        .datasource(_SOURCE)
        .unit(figure.unit)
        .height(STAT_HEIGHT)
        .span(figure.width)
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.AREA)
        .thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(0, figure.query))
    )
