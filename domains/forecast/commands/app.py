"""The commands of `multisched forecast`. Parses arguments; `answers` gets and formats the documents.

All commands share the options that choose the data source: a running multisched, a dump of a cluster with a
configuration, or a profiles file, which contains services only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from domains.forecast.commands.query_source import QuerySource
from multisched.cli.options import Format, Output, fail
from multisched.cli.query_commands import SourceOptions, query_command, with_options

forecast_app = typer.Typer(
    name="forecast", help="Show predicted use of services and load of nodes over the week.", no_args_is_help=True
)


class ReportOutput(Enum):
    """The form of the report."""

    HTML = "html"
    JSON = "json"


ProfilesFile = Annotated[
    Path | None,
    typer.Option(
        "--profiles",
        help="Read this profilesFile of PeakForecast instead of asking a server. It contains profiles of services, but no nodes.",
        envvar="MULTISCHED_PROFILES",
    ),
]
Domain = Annotated[str | None, typer.Option(help="The domain; required if several domains have a forecast.")]
Limit = Annotated[
    int, typer.Option(min=0, max=100_000, help="Maximum number of rows in the table. json and yaml always contain all.")
]


@with_options(SourceOptions)
def _query_source(
    options: SourceOptions, invocation: typer.Context, profiles: ProfilesFile = None, domain: Domain = None
) -> QuerySource:
    """Determines the data source from the shared options."""
    said = {name for name in ("profiles", "server", "snapshot") if _is_given(invocation, name)}
    if {"profiles", "server"} <= said:
        fail("--profiles cannot be combined with --server: only the file is read")
    if said and "profiles" not in said:
        profiles = None  # options of the command line override MULTISCHED_PROFILES
    now = datetime.now(UTC)
    if profiles is None:
        return QuerySource(options.source(), now, domain or "")
    if options.snapshot is not None or options.config is not None:
        fail("--profiles cannot be combined with --snapshot and --config: only the file is read")
    return QuerySource(profiles, now)


def _is_given(invocation: typer.Context, name: str) -> bool:
    source = invocation.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@forecast_app.command("services")
@query_command(_query_source)
def services(source: QuerySource, output: Format = Output.TABLE) -> str:
    """List services with their peaks and the errors of their profiles."""
    from domains.forecast.commands import answers

    return answers.services(source, output.value)


@forecast_app.command("service")
@query_command(_query_source)
def service(
    source: QuerySource,
    name: Annotated[str, typer.Argument(help="The service, as named by `forecast services`.")],
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one service."""
    from domains.forecast.commands import answers

    return answers.service(source, name, output.value)


@forecast_app.command("nodes")
@query_command(_query_source)
def nodes(source: QuerySource, limit: Limit = 100, output: Format = Output.TABLE) -> str:
    """List nodes by predicted peak, the highest first; -o wide shows every dimension."""
    from domains.forecast.commands import answers

    return answers.nodes(source, limit, output.value)


@forecast_app.command("node")
@query_command(_query_source)
def node(
    source: QuerySource,
    name: Annotated[str, typer.Argument(help="The node.")],
    limit: Limit = 30,
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one node, and list its pods by their share of its peak, with the peak of the node without each pod."""
    from domains.forecast.commands import answers

    return answers.node(source, name, limit, output.value)


@forecast_app.command("at")
@query_command(_query_source)
def at(
    source: QuerySource,
    moment: Annotated[
        str, typer.Argument(help='"Tue 20:00", or "20:00" for the day with the highest load at that time; "now".')
    ],
    limit: Limit = 100,
    output: Format = Output.TABLE,
) -> str:
    """Show the predicted use of services and load of nodes at one time of the week."""
    from domains.forecast.commands import answers

    return answers.at(source, moment, limit, output.value)


@forecast_app.command("backtest")
@query_command(_query_source)
def backtest(source: QuerySource, limit: Limit = 50, output: Format = Output.TABLE) -> str:
    """Show how well each kind of profile would have predicted the last days, and which one was chosen and why; the worst first."""
    from domains.forecast.commands import answers

    return answers.backtest(source, limit, output.value)


@forecast_app.command("report")
@query_command(_query_source)
def report(
    source: QuerySource,
    usage: Annotated[
        list[Path] | None,
        typer.Option(help="Also plot this history (CSV: timestamp, service or pod, dimension, value)."),
    ] = None,
    output: Annotated[ReportOutput, typer.Option("--output", "-o", help="Output format.")] = ReportOutput.HTML,
) -> str:
    """Write an HTML page with history, prediction band and peak of every service, a heat map of the nodes, and what-if."""
    from domains.forecast.commands import answers

    return answers.report(source, usage or [], output.value)
